// What the lowering of every decoder family shares: the walk over its layers, residual adds, attention, the head with its
// loss.
#pragma once

#include <string>
#include <vector>

#include "harness/program/builder.h"

namespace mixroof {

/// Shape of an activation or its gradient.
std::vector<std::int64_t> rows_by(const ProgramBuilder& builder, std::int64_t width);

/// stream + branch, the output of a linear; returns the new stream, called `name`.
TensorId add_residual(ProgramBuilder& builder, const std::string& name, TensorId stream, TensorId branch);

/// What attention's backward reads.
struct Attention {
  TensorId qkv = -1, out = -1, lse = -1;
};
/// Causal attention over projections qkv[rows, qkv_width]; within documents when the batch is packed.
Attention attention(ProgramBuilder& builder, const std::string& name, TensorId qkv);
/// The gradient of qkv from that of `out`.
TensorId attention_backward(ProgramBuilder& builder, const std::string& name, const Attention& forward, TensorId dout);

/// Logits of x (in the format between ops) and, in their place, their gradient: the loss is taken here. The head is never
/// in FP8.
TensorId head(ProgramBuilder& builder, const std::string& weight, const ProductOperand& x);
/// The weight's gradient, and that of x, which is returned.
TensorId head_backward(ProgramBuilder& builder, const std::string& weight, TensorId dlogits, const ProductOperand& x);

/// Forward and backward of one micro-batch. A family has
///   embed() → the residual stream;                embed_backward(dstream)
///   forward(layer number, stream) → its Layer, whose `out` is the next stream;  backward(Layer, dout) → dstream
///   norm(name, stream) → its Norm, with output y;  norm_backward(name, dy, Norm, dresidual or -1) → dstream
///   final_norm, head_weight: names of parameters
template <typename Family>
void lower_micro_batch(ProgramBuilder& b, Family& family, SectionKind section) {
  b.begin(section);
  b.set_phase(Phase::forward);
  TensorId stream = family.embed();
  std::vector<decltype(family.forward(0, stream))> layers;
  for (int i = 0; i < b.model().layers; ++i) {
    b.set_layer(i);
    layers.push_back(family.forward(i, stream));
    stream = layers.back().out;
  }
  b.set_layer(-1);
  const auto final_norm = family.norm(family.final_norm, stream);
  const ProductOperand head_in = b.product_operand(final_norm.y, b.recipe().between, "head.in");
  const TensorId dlogits = head(b, family.head_weight, head_in);

  b.set_phase(Phase::backward);
  const TensorId dnorm = head_backward(b, family.head_weight, dlogits, head_in);
  TensorId dstream = family.norm_backward(family.final_norm, dnorm, final_norm, -1);
  for (int i = static_cast<int>(layers.size()) - 1; i >= 0; --i) {
    b.set_layer(i);
    dstream = family.backward(layers[static_cast<std::size_t>(i)], dstream);
  }
  b.set_layer(-1);
  family.embed_backward(dstream);
}

/// Both micro-batch sections.
template <typename Family>
void lower_decoder(ProgramBuilder& builder) {
  Family family(builder);
  lower_micro_batch(builder, family, SectionKind::first);
  if (builder.batch().micro_batches > 1) lower_micro_batch(builder, family, SectionKind::next);
}

}  // namespace mixroof
