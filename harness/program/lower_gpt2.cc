// GPT-2: learned positions, pre-LayerNorm, biases, fused q·k·v, causal attention, tanh GELU, tied head.
#include <fmt/format.h>

#include "harness/program/decoder.h"
#include "kernels/activation/activation.h"
#include "kernels/embedding/embedding.h"
#include "kernels/norm/norm.h"

namespace mixroof {
namespace {

/// A norm's tensors that its backward reads.
struct Norm {
  TensorId x = -1, y = -1, mean = -1, rstd = -1;
};

/// What one layer's backward reads.
struct Layer {
  std::string prefix;
  Norm norm1, norm2;
  ProductOperand qkv_in, proj_in, fc_in, out_in;
  Attention attention;
  TensorId hidden = -1;
  TensorId out = -1;  // the residual stream after it
};

class Gpt2 {
 public:
  const std::string final_norm = "ln_f", head_weight = "wte.weight";

  explicit Gpt2(ProgramBuilder& builder) : b(builder), m(builder.model()), r(builder.recipe()) {}

  TensorId embed() {
    const TensorId x = b.activation("embedding.out", r.stream, rows_by(b, m.width));
    std::vector<OperandRef> operands = {{b.tokens()}};
    if (b.batch().packed) operands.push_back({b.program().position_ids});
    for (const TensorId id : {b.param("wte.weight"), b.param("wpe.weight"), x}) operands.push_back({id});
    b.op("embedding forward", embedding_forward_problem(embedding_shape(), r.params, r.stream), std::move(operands));
    return x;
  }

  void embed_backward(TensorId dx) {
    std::vector<OperandRef> operands = {{dx}, {b.tokens()}};
    if (b.batch().packed) operands.push_back({b.program().position_ids});
    for (const TensorId id : {b.grad("wte.weight"), b.grad("wpe.weight")}) operands.push_back({id});
    b.op("embedding backward",
         embedding_backward_problem(embedding_shape(), r.stream, b.program().grad_format, true, b.accumulates()),
         std::move(operands));
  }

  Norm norm(const std::string& name, TensorId x) {
    const Norm n = {.x = x,
                    .y = b.activation(name + ".out", r.stream, rows_by(b, m.width)),
                    .mean = b.activation(name + ".mean", Format::fp32, {b.rows()}),
                    .rstd = b.activation(name + ".rstd", Format::fp32, {b.rows()})};
    b.op(name + " forward", norm_forward_problem(b.rows(), m.width, r.stream, r.params, r.stream, m.norm_eps),
         {{x}, {b.param(name + ".weight")}, {b.param(name + ".bias")}, {n.y}, {n.mean}, {n.rstd}});
    return n;
  }

  /// dy in the format between ops; `dresidual` (-1: none) is what the residual path brings.
  TensorId norm_backward(const std::string& name, TensorId dy, const Norm& n, TensorId dresidual) {
    const TensorId dx = b.gradient(name + ".din", r.stream, rows_by(b, m.width));
    std::vector<OperandRef> operands = {{dy}, {n.x}, {b.param(name + ".weight")}, {n.mean}, {n.rstd}};
    if (dresidual >= 0) operands.push_back({dresidual});
    for (const TensorId id : {dx, b.grad(name + ".weight"), b.grad(name + ".bias")}) operands.push_back({id});
    b.op(name + " backward",
         norm_backward_problem(b.rows(), m.width, b.format(dy), r.stream, r.params, r.stream, b.program().grad_format,
                               dresidual >= 0, b.accumulates(), m.norm_eps),
         std::move(operands));
    return dx;
  }

  Layer forward(int i, TensorId x) {
    Layer l;
    l.prefix = fmt::format("h.{}.", i);
    l.norm1 = norm(l.prefix + "ln_1", x);
    l.qkv_in = b.product_operand(l.norm1.y, r.matmul_forward, l.prefix + "attn.c_attn.in");
    const TensorId qkv = b.linear(l.prefix + "attn.c_attn", l.qkv_in, m.width, m.qkv_width(), r.matmul_forward, true);
    l.attention = attention(b, l.prefix + "attn", qkv);
    l.proj_in = b.product_operand(l.attention.out, r.matmul_forward, l.prefix + "attn.c_proj.in");
    const TensorId attended = b.linear(l.prefix + "attn.c_proj", l.proj_in, m.width, m.width, r.matmul_forward, true);
    const TensorId middle = add_residual(b, l.prefix + "attn.residual", x, attended);

    l.norm2 = norm(l.prefix + "ln_2", middle);
    l.fc_in = b.product_operand(l.norm2.y, r.matmul_forward, l.prefix + "mlp.c_fc.in");
    l.hidden = b.linear(l.prefix + "mlp.c_fc", l.fc_in, m.width, m.hidden, r.matmul_forward, true);
    const TensorId activated = b.activation(l.prefix + "mlp.gelu.out", r.between, rows_by(b, m.hidden));
    b.op(l.prefix + "mlp.gelu forward", gelu_problem(b.rows() * m.hidden, r.between, r.between), {{l.hidden}, {activated}});
    l.out_in = b.product_operand(activated, r.matmul_forward, l.prefix + "mlp.c_proj.in");
    const TensorId fed = b.linear(l.prefix + "mlp.c_proj", l.out_in, m.hidden, m.width, r.matmul_forward, true);
    l.out = add_residual(b, l.prefix + "mlp.residual", middle, fed);
    return l;
  }

  TensorId backward(const Layer& l, TensorId dout) {
    const auto linear = [&](const std::string& name, TensorId dy, const ProductOperand& x, std::int64_t in, std::int64_t out) {
      return b.linear_backward(l.prefix + name, dy, x, in, out, r.matmul_forward, r.matmul_gradient, true);
    };
    const TensorId dactivated = linear("mlp.c_proj", dout, l.out_in, m.hidden, m.width);
    const TensorId dhidden = b.gradient(l.prefix + "mlp.gelu.din", r.between, rows_by(b, m.hidden));
    b.op(l.prefix + "mlp.gelu backward", gelu_backward_problem(b.rows() * m.hidden, r.between, r.between, r.between),
         {{dactivated}, {l.hidden}, {dhidden}});
    const TensorId dnorm2 = linear("mlp.c_fc", dhidden, l.fc_in, m.width, m.hidden);
    const TensorId dmiddle = norm_backward(l.prefix + "ln_2", dnorm2, l.norm2, dout);

    const TensorId dattended = linear("attn.c_proj", dmiddle, l.proj_in, m.width, m.width);
    const TensorId dqkv = attention_backward(b, l.prefix + "attn", l.attention, dattended);
    const TensorId dnorm1 = linear("attn.c_attn", dqkv, l.qkv_in, m.width, m.qkv_width());
    return norm_backward(l.prefix + "ln_1", dnorm1, l.norm1, dmiddle);
  }

 private:
  EmbeddingShape embedding_shape() const {
    const Batch& batch = b.batch();
    return {.batch = batch.micro_batch, .seq = batch.seq, .vocab = m.vocab, .context = m.context, .width = m.width,
            .packed = batch.packed};
  }

  ProgramBuilder& b;
  const Model& m;
  const Recipe& r;
};

}  // namespace

void lower_gpt2(ProgramBuilder& builder) { lower_decoder<Gpt2>(builder); }

}  // namespace mixroof
