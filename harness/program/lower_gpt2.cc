// GPT-2: learned positions, pre-LayerNorm, biases, fused q·k·v, causal attention, tanh GELU, tied head.
#include <fmt/format.h>

#include "harness/program/builder.h"
#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "kernels/matmul/matmul.h"
#include "kernels/norm/norm.h"
#include "kernels/residual/residual.h"

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
  TensorId qkv = -1, lse = -1, attended = -1, hidden = -1;
};

class Gpt2 {
 public:
  explicit Gpt2(ProgramBuilder& builder) : b(builder), m(builder.model()), r(builder.recipe()) {}

  void micro_batch(SectionKind section) {
    b.begin(section);
    b.set_phase(Phase::forward);
    TensorId x = embed();
    std::vector<Layer> layers;
    for (int i = 0; i < m.layers; ++i) {
      b.set_layer(i);
      layers.push_back(forward(i, x));
      x = residual(layers.back().prefix + "mlp.residual", layers.back().norm2.x, layers.back().prefix + "mlp.c_proj.out");
    }
    b.set_layer(-1);
    const Norm final_norm = norm("ln_f", x);
    const ProductOperand head_in = b.product_operand(final_norm.y, r.between, "head.in");
    const TensorId logits = head(head_in);

    b.set_phase(Phase::backward);
    TensorId dx = norm_backward("ln_f", head_backward(logits, head_in), final_norm, -1);
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      b.set_layer(static_cast<int>(layers.rend() - layer) - 1);
      dx = backward(*layer, dx);
    }
    b.set_layer(-1);
    b.op("embedding backward", embedding_backward_problem(embedding_shape(), r.stream, b.program().grad_format, true, b.accumulates()),
         {{dx}, {b.tokens()}, {b.grad("wte.weight")}, {b.grad("wpe.weight")}});
  }

 private:
  EmbeddingShape embedding_shape() const {
    return {.batch = b.batch().micro_batch, .seq = b.batch().seq, .vocab = m.vocab, .context = m.context, .width = m.width};
  }
  AttentionShape attention_shape() const {
    return {.batch = b.batch().micro_batch, .seq = b.batch().seq, .heads = m.heads, .kv_heads = m.kv_heads,
            .head_dim = m.head_dim()};
  }
  std::vector<std::int64_t> rows_by(std::int64_t width) const { return {b.rows(), width}; }

  TensorId embed() {
    const TensorId x = b.activation("embedding.out", r.stream, rows_by(m.width));
    b.op("embedding forward", embedding_forward_problem(embedding_shape(), r.params, r.stream),
         {{b.tokens()}, {b.param("wte.weight")}, {b.param("wpe.weight")}, {x}});
    return x;
  }

  Norm norm(const std::string& name, TensorId x) {
    const Norm n = {.x = x,
                    .y = b.activation(name + ".out", r.stream, rows_by(m.width)),
                    .mean = b.activation(name + ".mean", Format::fp32, {b.rows()}),
                    .rstd = b.activation(name + ".rstd", Format::fp32, {b.rows()})};
    b.op(name + " forward", norm_forward_problem(b.rows(), m.width, r.stream, r.params, r.stream, m.norm_eps),
         {{x}, {b.param(name + ".weight")}, {b.param(name + ".bias")}, {n.y}, {n.mean}, {n.rstd}});
    return n;
  }

  /// dy in the format between ops; `dresidual` (-1: none) is what the residual path brings.
  TensorId norm_backward(const std::string& name, TensorId dy, const Norm& n, TensorId dresidual) {
    const TensorId dx = b.gradient(name + ".din", r.stream, rows_by(m.width));
    std::vector<OperandRef> operands = {{dy}, {n.x}, {b.param(name + ".weight")}, {n.mean}, {n.rstd}};
    if (dresidual >= 0) operands.push_back({dresidual});
    for (const TensorId id : {dx, b.grad(name + ".weight"), b.grad(name + ".bias")}) operands.push_back({id});
    b.op(name + " backward",
         norm_backward_problem(b.rows(), m.width, b.format(dy), r.stream, r.params, r.stream, b.program().grad_format,
                               dresidual >= 0, b.accumulates(), m.norm_eps),
         std::move(operands));
    return dx;
  }

  TensorId residual(const std::string& name, TensorId stream, const std::string& branch_name) {
    const TensorId branch = b.activation(branch_name, r.between, rows_by(m.width));
    const TensorId out = b.activation(name, r.stream, rows_by(m.width));
    b.op(name, residual_problem(b.rows() * m.width, r.stream, r.between, r.stream), {{stream}, {branch}, {out}});
    return out;
  }

  Layer forward(int i, TensorId x) {
    Layer l;
    l.prefix = fmt::format("h.{}.", i);
    l.norm1 = norm(l.prefix + "ln_1", x);
    l.qkv_in = b.product_operand(l.norm1.y, r.matmul_forward, l.prefix + "attn.c_attn.in");
    l.qkv = b.linear(l.prefix + "attn.c_attn", l.qkv_in, m.width, 3 * m.width, r.matmul_forward, true);
    l.attended = b.activation(l.prefix + "attn.out", r.between, rows_by(m.width));
    l.lse = b.activation(l.prefix + "attn.lse", Format::fp32, {b.batch().micro_batch, m.heads, b.batch().seq});
    b.op(l.prefix + "attn forward", attention_forward_problem(attention_shape(), r.between), {{l.qkv}, {l.attended}, {l.lse}});
    l.proj_in = b.product_operand(l.attended, r.matmul_forward, l.prefix + "attn.c_proj.in");
    b.linear(l.prefix + "attn.c_proj", l.proj_in, m.width, m.width, r.matmul_forward, true);

    l.norm2 = norm(l.prefix + "ln_2", residual(l.prefix + "attn.residual", x, l.prefix + "attn.c_proj.out"));
    l.fc_in = b.product_operand(l.norm2.y, r.matmul_forward, l.prefix + "mlp.c_fc.in");
    l.hidden = b.linear(l.prefix + "mlp.c_fc", l.fc_in, m.width, m.hidden, r.matmul_forward, true);
    const TensorId activated = b.activation(l.prefix + "mlp.gelu.out", r.between, rows_by(m.hidden));
    b.op(l.prefix + "mlp.gelu forward", gelu_problem(b.rows() * m.hidden, r.between, r.between), {{l.hidden}, {activated}});
    l.out_in = b.product_operand(activated, r.matmul_forward, l.prefix + "mlp.c_proj.in");
    b.linear(l.prefix + "mlp.c_proj", l.out_in, m.hidden, m.width, r.matmul_forward, true);
    return l;
  }

  TensorId backward(const Layer& l, TensorId dout) {
    const auto linear = [&](const std::string& name, TensorId dy, const ProductOperand& x, std::int64_t in, std::int64_t out) {
      return b.linear_backward(l.prefix + name, dy, x, in, out, r.matmul_forward, r.matmul_gradient, true);
    };
    const TensorId dactivated = linear("mlp.c_proj", dout, l.out_in, m.hidden, m.width);
    const TensorId dhidden = b.gradient(l.prefix + "mlp.gelu.din", r.between, rows_by(m.hidden));
    b.op(l.prefix + "mlp.gelu backward", gelu_backward_problem(b.rows() * m.hidden, r.between, r.between, r.between),
         {{dactivated}, {l.hidden}, {dhidden}});
    const TensorId dnorm2 = linear("mlp.c_fc", dhidden, l.fc_in, m.width, m.hidden);
    const TensorId dmiddle = norm_backward(l.prefix + "ln_2", dnorm2, l.norm2, dout);

    const TensorId dattended = linear("attn.c_proj", dmiddle, l.proj_in, m.width, m.width);
    const TensorId dqkv = b.gradient(l.prefix + "attn.dqkv", r.between, rows_by(3 * m.width));
    b.op(l.prefix + "attn backward", attention_backward_problem(attention_shape(), r.between),
         {{l.qkv}, {l.attended}, {dattended}, {l.lse}, {dqkv}});
    const TensorId dnorm1 = linear("attn.c_attn", dqkv, l.qkv_in, m.width, 3 * m.width);
    return norm_backward(l.prefix + "ln_1", dnorm1, l.norm1, dmiddle);
  }

  /// Logits and, in their place, their gradient. The head is tied to the token table and never in FP8.
  TensorId head(const ProductOperand& x) {
    const ProductOperand w = b.weight_operand("wte.weight", r.between);
    const TensorId logits = b.activation("logits", r.between, rows_by(m.vocab));
    b.op("head forward",
         matmul_problem(MatmulVariant::forward, {.m = b.rows(), .n = m.vocab, .k = m.width}, r.between, r.between, r.between),
         {{x.tensor}, {w.tensor}, {logits}});
    const TensorId losses = b.activation("losses", Format::fp32, {b.rows()});
    b.op("cross_entropy", cross_entropy_problem(b.rows(), m.vocab, r.between, b.accumulates()),
         {{logits}, {b.program().targets}, {losses}, {b.control()}});
    b.program().logits = logits;
    b.program().losses = losses;
    return logits;
  }

  TensorId head_backward(TensorId dlogits, const ProductOperand& x) {
    const ProductOperand w = b.weight_operand("wte.weight", r.between);
    b.op("head wgrad",
         matmul_problem(MatmulVariant::wgrad, {.m = m.vocab, .n = m.width, .k = b.rows()}, r.between, r.between,
                        b.program().grad_format, false, Format::fp32, b.accumulates()),
         {{dlogits}, {x.tensor}, {b.grad("wte.weight")}});
    const TensorId dx = b.gradient("head.din", r.between, rows_by(m.width));
    b.op("head dgrad",
         matmul_problem(MatmulVariant::dgrad, {.m = b.rows(), .n = m.width, .k = m.vocab}, r.between, r.between, r.between),
         {{dlogits}, {w.tensor}, {dx}});
    return dx;
  }

  ProgramBuilder& b;
  const Model& m;
  const Recipe& r;
};

}  // namespace

void lower_gpt2(ProgramBuilder& builder) {
  Gpt2 gpt2(builder);
  gpt2.micro_batch(SectionKind::first);
  if (builder.batch().micro_batches > 1) gpt2.micro_batch(SectionKind::next);
}

}  // namespace mixroof
