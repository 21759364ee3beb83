// What the lowering of every model family shares: declaring tensors, appending checked ops, the linear layer with the
// casts and quantizations that a recipe asks for, and the update section.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/program/lower.h"
#include "kernels/matmul/matmul.h"
#include "kernels/quantize_blocks/quantize_blocks.h"

namespace mixroof {

/// A tensor as a matrix product takes it: fp32 or 16-bit as it is, or FP8 codes with their scale.
struct ProductOperand {
  TensorId tensor = -1;
  int scale = -1;           // per tensor: its number; -1: none
  TensorId scale_inv = -1;  // by blocks: their tensor; -1: none
  TensorId source = -1;     // what was quantized by blocks, for products that reduce over its other dimension
};

class ProgramBuilder {
 public:
  ProgramBuilder(const Model& model, const Recipe& recipe, const Batch& batch, const Target& target,
                 const LowerOptions& options);

  const Recipe& recipe() const { return *program_.recipe; }
  const Model& model() const { return program_.model; }
  const Batch& batch() const { return program_.batch; }
  std::int64_t rows() const { return program_.batch.micro_batch * program_.batch.seq; }

  /// Starts a section; ops are appended to it until the next call. Gradients accumulate in `next`.
  void begin(SectionKind section) { section_ = section; }
  void set_phase(Phase phase) { phase_ = phase; }
  void set_layer(int layer) { layer_ = layer; }
  bool accumulates() const { return section_ == SectionKind::next; }

  /// A transient tensor; the same name gives the same tensor again (both micro-batch sections share them).
  TensorId transient(const std::string& name, TensorClass tensor_class, Format format, std::vector<std::int64_t> shape);
  TensorId activation(const std::string& name, Format format, std::vector<std::int64_t> shape);
  TensorId gradient(const std::string& name, Format format, std::vector<std::int64_t> shape);

  TensorId param(const std::string& name) const { return parameter(name).param; }
  TensorId grad(const std::string& name) const { return parameter(name).grad; }
  TensorId tokens() const { return program_.tokens; }
  TensorId control() const { return program_.control; }
  Format format(TensorId id) const { return tensor(id).format; }

  /// Appends an op. Operands are checked against the kernel's own list: count, format, and that the view fits.
  void op(const std::string& name, Problem problem, std::vector<OperandRef> operands);

  /// Which dimension of an operand a product sums over: block scales lie along it.
  enum class Reduction { columns, rows };

  /// x[rows, width] as a product of format `wanted` takes it: itself, a cast ("cast at use"), or quantized.
  ProductOperand product_operand(TensorId x, Format wanted, const std::string& name, Reduction reduction = Reduction::columns);
  /// A weight [out, in] likewise; copies are made in the first micro-batch of a window and kept for it.
  ProductOperand weight_operand(const std::string& name, Format wanted, Reduction reduction = Reduction::columns);

  /// y[rows, out] = x · wᵀ + b in the recipe's format between ops. `layer` names the parameters "<layer>.weight/.bias".
  TensorId linear(const std::string& layer, const ProductOperand& x, std::int64_t in, std::int64_t out, Format product,
                  bool bias);
  /// Weight and bias gradients, and the gradient of x[rows, in], which is returned.
  TensorId linear_backward(const std::string& layer, TensorId dy, const ProductOperand& x, std::int64_t in, std::int64_t out,
                           Format product, Format product_gradient, bool bias);

  /// Finite check and norm of every gradient, the decision, the optimizer, the scales.
  void update_section();

  Program take() { return std::move(program_); }
  Program& program() { return program_; }

 private:
  TensorId declare(Tensor tensor);
  TensorId state(const std::string& name, TensorClass tensor_class, Format format, std::vector<std::int64_t> shape, int layer);
  void declare_document_inputs();
  void declare_parameters();
  void declare_fp8_state();
  const Tensor& tensor(TensorId id) const { return program_.tensors[static_cast<std::size_t>(id)]; }
  const Program::Parameter& parameter(const std::string& name) const;
  bool scales_by_blocks(Format product) const { return is_fp8(product) && !is_per_tensor(recipe().fp8); }
  ProductOperand quantized(TensorId x, Format wanted, const std::string& name, TensorClass tensor_class, bool once_a_window,
                           Reduction reduction);
  void quantize_tensor(TensorId x, const std::string& name, const ProductOperand& codes, bool once_a_window);
  void quantize_blocks(TensorId x, const std::string& name, int number, const ProductOperand& codes, const BlockShape& shape);
  Problem product_problem(MatmulVariant variant, const MatmulShape& shape, const ProductOperand& a, const ProductOperand& b,
                          Format c, bool bias = false, bool accumulate = false) const;
  void resize_fp8_state();
  void product(const std::string& name, const Problem& problem, const ProductOperand& a, const ProductOperand& b,
               TensorId bias, TensorId c);
  int scale_index(const std::string& name, Format format);
  void check_operands(const std::string& name, const std::vector<Operand>& expected,
                      const std::vector<OperandRef>& operands) const;

  Program program_;
  LowerOptions options_;
  SectionKind section_ = SectionKind::first;
  Phase phase_ = Phase::forward;
  int layer_ = -1;
  std::map<std::string, TensorId> by_name_;
  std::map<std::string, std::size_t> parameter_by_name_;
  std::map<std::string, int> scale_by_name_;
  std::vector<Format> scale_formats_;
};

/// Lowering of one family: the two micro-batch sections. One file each.
void lower_gpt2(ProgramBuilder& builder);
void lower_llama(ProgramBuilder& builder);

}  // namespace mixroof
