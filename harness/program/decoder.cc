#include "harness/program/decoder.h"

#include "kernels/attention/attention.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/matmul/matmul.h"
#include "kernels/residual/residual.h"

namespace mixroof {
namespace {

AttentionShape attention_shape(const ProgramBuilder& b) {
  const Model& m = b.model();
  const Batch& batch = b.batch();
  return {.batch = batch.micro_batch, .seq = batch.seq, .heads = m.heads, .kv_heads = m.kv_heads, .head_dim = m.head_dim,
          .packed = batch.packed, .pairs = batch.attention_pairs};
}

/// The operands that start both directions.
std::vector<OperandRef> projections(ProgramBuilder& b, TensorId qkv) {
  std::vector<OperandRef> operands = {{qkv}};
  if (b.batch().packed) operands.push_back({b.program().first_key});
  return operands;
}

}  // namespace

std::vector<std::int64_t> rows_by(const ProgramBuilder& builder, std::int64_t width) { return {builder.rows(), width}; }

TensorId add_residual(ProgramBuilder& b, const std::string& name, TensorId stream, TensorId branch) {
  const std::int64_t width = b.model().width;
  const Format format = b.recipe().stream;
  const TensorId out = b.activation(name, format, rows_by(b, width));
  b.op(name, residual_problem(b.rows() * width, format, b.format(branch), format), {{stream}, {branch}, {out}});
  return out;
}

Attention attention(ProgramBuilder& b, const std::string& name, TensorId qkv) {
  const Format io = b.recipe().between;
  const Attention a = {
      .qkv = qkv,
      .out = b.activation(name + ".out", io, rows_by(b, b.model().attention_width())),
      .lse = b.activation(name + ".lse", Format::fp32, {b.batch().micro_batch, b.model().heads, b.batch().seq})};
  std::vector<OperandRef> operands = projections(b, qkv);
  for (const TensorId id : {a.out, a.lse}) operands.push_back({id});
  b.op(name + " forward", attention_forward_problem(attention_shape(b), io), std::move(operands));
  return a;
}

TensorId attention_backward(ProgramBuilder& b, const std::string& name, const Attention& a, TensorId dout) {
  const Format io = b.recipe().between;
  const TensorId dqkv = b.gradient(name + ".dqkv", io, rows_by(b, b.model().qkv_width()));
  std::vector<OperandRef> operands = projections(b, a.qkv);
  for (const TensorId id : {a.out, dout, a.lse, dqkv}) operands.push_back({id});
  b.op(name + " backward", attention_backward_problem(attention_shape(b), io), std::move(operands));
  return dqkv;
}

TensorId head(ProgramBuilder& b, const std::string& weight, const ProductOperand& x) {
  const Format io = b.recipe().between;
  const Model& m = b.model();
  const ProductOperand w = b.weight_operand(weight, io);
  const TensorId logits = b.activation("logits", io, rows_by(b, m.vocab));
  b.op("head forward",
       matmul_problem(MatmulVariant::forward, {.m = b.rows(), .n = m.vocab, .k = m.width}, io, io, io),
       {{x.tensor}, {w.tensor}, {logits}});
  const TensorId losses = b.activation("losses", Format::fp32, {b.rows()});
  b.op("cross_entropy", cross_entropy_problem(b.rows(), m.vocab, io, b.accumulates()),
       {{logits}, {b.program().targets}, {losses}, {b.control()}});
  b.program().logits = logits;
  b.program().losses = losses;
  return logits;
}

TensorId head_backward(ProgramBuilder& b, const std::string& weight, TensorId dlogits, const ProductOperand& x) {
  const Format io = b.recipe().between;
  const Model& m = b.model();
  const ProductOperand w = b.weight_operand(weight, io);
  b.op("head wgrad",
       matmul_problem(MatmulVariant::wgrad, {.m = m.vocab, .n = m.width, .k = b.rows()}, io, io, b.program().grad_format,
                      false, Format::fp32, b.accumulates()),
       {{dlogits}, {x.tensor}, {b.grad(weight)}});
  const TensorId dx = b.gradient("head.din", io, rows_by(b, m.width));
  b.op("head dgrad", matmul_problem(MatmulVariant::dgrad, {.m = b.rows(), .n = m.width, .k = m.vocab}, io, io, io),
       {{dlogits}, {w.tensor}, {dx}});
  return dx;
}

}  // namespace mixroof
