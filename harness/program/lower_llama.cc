// Llama: rotary positions, RMSNorm, fused q·k·v (biased in Qwen 2), grouped-query attention, SwiGLU with fused gate and up,
// no other biases, a head of its own or tied. Tensors have Hugging Face's names; the fused ones say so in theirs.
#include <fmt/format.h>

#include "harness/program/decoder.h"
#include "kernels/activation/activation.h"
#include "kernels/embedding/embedding.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"

namespace mixroof {
namespace {

constexpr const char* kTable = "model.embed_tokens.weight";

/// A norm's tensors that its backward reads.
struct Norm {
  TensorId x = -1, y = -1, rstd = -1;
};

/// What one layer's backward reads.
struct Layer {
  std::string prefix;
  Norm norm1, norm2;
  ProductOperand qkv_in, o_in, gate_up_in, down_in;
  Attention attention;
  TensorId gate_up = -1;
  TensorId out = -1;  // the residual stream after it
};

class Llama {
 public:
  const std::string final_norm = "model.norm", head_weight;

  explicit Llama(ProgramBuilder& builder)
      : head_weight(builder.model().tied_head ? kTable : "lm_head.weight"),
        b(builder), m(builder.model()), r(builder.recipe()) {}

  TensorId embed() {
    const TensorId x = b.activation("embedding.out", r.stream, rows_by(b, m.width));
    b.op("embedding forward", embedding_forward_problem(embedding_shape(), r.params, r.stream),
         {{b.tokens()}, {b.param(kTable)}, {x}});
    return x;
  }

  void embed_backward(TensorId dx) {
    b.op("embedding backward",
         embedding_backward_problem(embedding_shape(), r.stream, b.program().grad_format, m.tied_head, b.accumulates()),
         {{dx}, {b.tokens()}, {b.grad(kTable)}});
  }

  Norm norm(const std::string& name, TensorId x) {
    const Norm n = {.x = x,
                    .y = b.activation(name + ".out", r.stream, rows_by(b, m.width)),
                    .rstd = b.activation(name + ".rstd", Format::fp32, {b.rows()})};
    b.op(name + " forward", rms_norm_forward_problem(b.rows(), m.width, r.stream, r.params, r.stream, m.norm_eps),
         {{x}, {b.param(name + ".weight")}, {n.y}, {n.rstd}});
    return n;
  }

  /// dy in the format between ops; `dresidual` (-1: none) is what the residual path brings.
  TensorId norm_backward(const std::string& name, TensorId dy, const Norm& n, TensorId dresidual) {
    const TensorId dx = b.gradient(name + ".din", r.stream, rows_by(b, m.width));
    std::vector<OperandRef> operands = {{dy}, {n.x}, {b.param(name + ".weight")}, {n.rstd}};
    if (dresidual >= 0) operands.push_back({dresidual});
    for (const TensorId id : {dx, b.grad(name + ".weight")}) operands.push_back({id});
    b.op(name + " backward",
         rms_norm_backward_problem(b.rows(), m.width, b.format(dy), r.stream, r.params, r.stream,
                                   b.program().grad_format, dresidual >= 0, b.accumulates(), m.norm_eps),
         std::move(operands));
    return dx;
  }

  Layer forward(int i, TensorId x) {
    Layer l;
    l.prefix = fmt::format("model.layers.{}.", i);
    const std::string attn = l.prefix + "self_attn", mlp = l.prefix + "mlp";
    l.norm1 = norm(l.prefix + "input_layernorm", x);
    l.qkv_in = b.product_operand(l.norm1.y, r.matmul_forward, attn + ".qkv_proj.in");
    const TensorId qkv = b.linear(attn + ".qkv_proj", l.qkv_in, m.width, m.qkv_width(), r.matmul_forward, m.qkv_bias);
    b.op(attn + ".rope forward", rope_forward_problem(rope_shape(), r.between, m.rope_theta), rope_operands(qkv));
    l.attention = attention(b, attn, qkv);
    l.o_in = b.product_operand(l.attention.out, r.matmul_forward, attn + ".o_proj.in");
    const TensorId attended =
        b.linear(attn + ".o_proj", l.o_in, m.attention_width(), m.width, r.matmul_forward, false);
    const TensorId middle = add_residual(b, attn + ".residual", x, attended);

    l.norm2 = norm(l.prefix + "post_attention_layernorm", middle);
    l.gate_up_in = b.product_operand(l.norm2.y, r.matmul_forward, mlp + ".gate_up_proj.in");
    l.gate_up = b.linear(mlp + ".gate_up_proj", l.gate_up_in, m.width, 2 * m.hidden, r.matmul_forward, false);
    const TensorId activated = b.activation(mlp + ".swiglu.out", r.between, rows_by(b, m.hidden));
    b.op(mlp + ".swiglu forward", swiglu_problem(b.rows(), m.hidden, r.between, r.between), {{l.gate_up}, {activated}});
    l.down_in = b.product_operand(activated, r.matmul_forward, mlp + ".down_proj.in");
    const TensorId fed = b.linear(mlp + ".down_proj", l.down_in, m.hidden, m.width, r.matmul_forward, false);
    l.out = add_residual(b, mlp + ".residual", middle, fed);
    return l;
  }

  TensorId backward(const Layer& l, TensorId dout) {
    const auto linear = [&](const std::string& name, TensorId dy, const ProductOperand& x, std::int64_t in,
                            std::int64_t out, bool bias = false) {
      return b.linear_backward(name, dy, x, in, out, r.matmul_forward, r.matmul_gradient, bias);
    };
    const std::string attn = l.prefix + "self_attn", mlp = l.prefix + "mlp";
    const TensorId dactivated = linear(mlp + ".down_proj", dout, l.down_in, m.hidden, m.width);
    const TensorId dgate_up = b.gradient(mlp + ".swiglu.din", r.between, rows_by(b, 2 * m.hidden));
    b.op(mlp + ".swiglu backward", swiglu_backward_problem(b.rows(), m.hidden, r.between, r.between, r.between),
         {{dactivated}, {l.gate_up}, {dgate_up}});
    const TensorId dnorm2 = linear(mlp + ".gate_up_proj", dgate_up, l.gate_up_in, m.width, 2 * m.hidden);
    const TensorId dmiddle = norm_backward(l.prefix + "post_attention_layernorm", dnorm2, l.norm2, dout);

    const TensorId dattended = linear(attn + ".o_proj", dmiddle, l.o_in, m.attention_width(), m.width);
    const TensorId dqkv = attention_backward(b, attn, l.attention, dattended);
    b.op(attn + ".rope backward", rope_backward_problem(rope_shape(), r.between, m.rope_theta), rope_operands(dqkv));
    const TensorId dnorm1 = linear(attn + ".qkv_proj", dqkv, l.qkv_in, m.width, m.qkv_width(), m.qkv_bias);
    return norm_backward(l.prefix + "input_layernorm", dnorm1, l.norm1, dmiddle);
  }

 private:
  /// Positions enter in attention: there is no table of them.
  EmbeddingShape embedding_shape() const {
    return {.batch = b.batch().micro_batch, .seq = b.batch().seq, .vocab = m.vocab, .width = m.width};
  }

  RopeShape rope_shape() const {
    return {.batch = b.batch().micro_batch, .seq = b.batch().seq, .heads = m.heads, .kv_heads = m.kv_heads,
            .head_dim = m.head_dim, .context = m.context, .packed = b.batch().packed};
  }

  std::vector<OperandRef> rope_operands(TensorId qkv) const {
    if (b.batch().packed) return {{b.program().position_ids}, {qkv}};
    return {{qkv}};
  }

  ProgramBuilder& b;
  const Model& m;
  const Recipe& r;
};

}  // namespace

void lower_llama(ProgramBuilder& builder) { lower_decoder<Llama>(builder); }

}  // namespace mixroof
