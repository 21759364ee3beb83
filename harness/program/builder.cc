#include "harness/program/builder.h"

#include <fmt/format.h>

#include <stdexcept>

#include "kernels/bias_grad/bias_grad.h"
#include "kernels/cast/cast.h"
#include "kernels/control.h"
#include "kernels/fp8_scale/fp8_scale.h"
#include "kernels/grad_check/grad_check.h"
#include "kernels/matmul/matmul.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/scale_rules.h"
#include "kernels/registry.h"

namespace mixroof {

ProgramBuilder::ProgramBuilder(const Model& model, const Recipe& recipe, const Batch& batch, const Target& target,
                               const LowerOptions& options)
    : options_(options) {
  program_.model = model;
  program_.recipe = &recipe;
  program_.batch = batch;
  program_.target = target;
  // Sums over micro-batches in 16 bits lose what each one adds; the wider gradients are counted and said.
  program_.grad_format = batch.micro_batches > 1 && !options.accumulate_in_grads ? Format::fp32 : recipe.grads;
  program_.tokens = declare({.name = "tokens", .tensor_class = TensorClass::tokens, .format = Format::int32,
                             .shape = {batch.micro_batch, batch.seq}});
  program_.targets = declare({.name = "targets", .tensor_class = TensorClass::tokens, .format = Format::int32,
                              .shape = {batch.micro_batch, batch.seq}});
  if (batch.packed) declare_document_inputs();
  declare_parameters();
  program_.control = state("control", TensorClass::scaling_state, Format::fp64, {static_cast<std::int64_t>(kControlSlots)}, -1);
  if (recipe.uses_fp8()) declare_fp8_state();
}

TensorId ProgramBuilder::declare(Tensor tensor) {
  const auto id = static_cast<TensorId>(program_.tensors.size());
  by_name_[tensor.name] = id;
  program_.tensors.push_back(std::move(tensor));
  return id;
}

TensorId ProgramBuilder::state(const std::string& name, TensorClass tensor_class, Format format,
                               std::vector<std::int64_t> shape, int layer) {
  return declare({.name = name, .tensor_class = tensor_class, .format = format, .shape = std::move(shape), .layer = layer,
                  .persistent = true});
}

void ProgramBuilder::declare_document_inputs() {
  const Batch& batch = program_.batch;
  const auto input = [&](const char* name) {
    return declare({.name = name, .tensor_class = TensorClass::tokens, .format = Format::int32,
                    .shape = {batch.micro_batch, batch.seq}});
  };
  program_.position_ids = input("position_ids");
  program_.first_key = input("first_key");
}

void ProgramBuilder::declare_parameters() {
  const Recipe& r = recipe();
  for (const ParameterSpec& spec : parameter_specs(model())) {
    Program::Parameter p;
    p.name = spec.name;
    p.param = state(spec.name, TensorClass::param, r.params, spec.shape, spec.layer);
    if (r.master) p.master = state(spec.name + ".master", TensorClass::master, *r.master, spec.shape, spec.layer);
    p.grad = state(spec.name + ".grad", TensorClass::grad, program_.grad_format, spec.shape, spec.layer);
    p.moment1 = state(spec.name + ".moment1", TensorClass::moment1, r.moments, spec.shape, spec.layer);
    p.moment2 = state(spec.name + ".moment2", TensorClass::moment2, r.moments, spec.shape, spec.layer);
    parameter_by_name_[spec.name] = program_.parameters.size();
    program_.parameters.push_back(std::move(p));
  }
}

// The number of FP8 tensors is known only after lowering: the shapes are set in update_section.
void ProgramBuilder::declare_fp8_state() {
  const auto fp8_state = [&](const std::string& name, Format format) {
    return state(name, TensorClass::scaling_state, format, {0}, -1);
  };
  program_.fp8_counts = fp8_state("fp8.counts", Format::fp64);
  program_.fp8_scale_counts = fp8_state("fp8.scale_counts", Format::fp64);
  if (is_per_tensor(recipe().fp8)) program_.fp8_scale = fp8_state("fp8.scale", Format::fp32);
  if (recipe().fp8 != Fp8Scaling::delayed) return;
  program_.fp8_amax = fp8_state("fp8.amax", Format::fp32);
  program_.fp8_history = fp8_state("fp8.amax_history", Format::fp32);
  program_.fp8_limits = fp8_state("fp8.limits", Format::fp32);
}

const Program::Parameter& ProgramBuilder::parameter(const std::string& name) const {
  return program_.parameters[parameter_by_name_.at(name)];
}

TensorId ProgramBuilder::transient(const std::string& name, TensorClass tensor_class, Format format,
                                   std::vector<std::int64_t> shape) {
  if (const auto known = by_name_.find(name); known != by_name_.end()) return known->second;
  return declare({.name = name, .tensor_class = tensor_class, .format = format, .shape = std::move(shape), .layer = layer_});
}

TensorId ProgramBuilder::activation(const std::string& name, Format format, std::vector<std::int64_t> shape) {
  return transient(name, TensorClass::activation, format, std::move(shape));
}

TensorId ProgramBuilder::gradient(const std::string& name, Format format, std::vector<std::int64_t> shape) {
  return transient(name, TensorClass::gradient_activation, format, std::move(shape));
}

void ProgramBuilder::check_operands(const std::string& name, const std::vector<Operand>& expected,
                                    const std::vector<OperandRef>& operands) const {
  if (expected.size() != operands.size())
    throw std::logic_error(fmt::format("{}: {} operands, the kernel takes {}", name, operands.size(), expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Tensor& t = tensor(operands[i].tensor);
    const bool is_sized_later = t.tensor_class == TensorClass::scaling_state && t.count() == 0;
    if (t.format != expected[i].format || (!is_sized_later && operands[i].offset + expected[i].count() > t.count()))
      throw std::logic_error(fmt::format("{}: operand {} wants {} x {}, {} has {} x {} from {} on", name, expected[i].name,
                                         mixroof::name(expected[i].format), expected[i].count(), t.name,
                                         mixroof::name(t.format), t.count(), operands[i].offset));
  }
}

void ProgramBuilder::op(const std::string& name, Problem problem, std::vector<OperandRef> operands) {
  const Kernel& kernel = find_kernel(problem.kernel);
  check_operands(name, kernel.operands(problem), operands);
  TensorId workspace = -1;
  if (const std::int64_t bytes = kernel.workspace_bytes(problem, program_.target); bytes > 0) {
    // fp32 words: workspaces are aligned scratch, not numbers of a format.
    const std::int64_t words = (bytes + bytes_of(Format::fp32) - 1) / bytes_of(Format::fp32);
    workspace = transient(fmt::format("{}.{}.workspace", name, static_cast<int>(section_)), TensorClass::workspace,
                          Format::fp32, {words});
  }
  program_.section(section_).push_back({.name = name, .problem = std::move(problem), .operands = std::move(operands),
                                        .phase = phase_, .layer = layer_, .workspace = workspace});
}

int ProgramBuilder::scale_index(const std::string& name, Format format) {
  const auto [found, is_new] = scale_by_name_.try_emplace(name, static_cast<int>(scale_formats_.size()));
  if (is_new) scale_formats_.push_back(format);
  return found->second;
}

ProductOperand ProgramBuilder::quantized(TensorId x, Format wanted, const std::string& name, TensorClass tensor_class,
                                         bool once_a_window, Reduction reduction) {
  const bool by_blocks = scales_by_blocks(wanted);
  // Blocks along the rows are other codes than those along the columns, with scales and counts of their own.
  const std::string base = by_blocks && reduction == Reduction::rows ? name + ".by_rows" : name;
  const int number = scale_index(base, wanted);
  const std::string codes_name = base + "." + std::string(mixroof::name(wanted));
  const bool is_made = once_a_window && by_name_.contains(codes_name);
  ProductOperand operand{.tensor = transient(codes_name, tensor_class, wanted, tensor(x).shape)};
  if (!by_blocks) {
    operand.scale = number;
    if (!is_made) quantize_tensor(x, base, operand, once_a_window);
    return operand;
  }
  BlockShape shape{.rows = tensor(x).shape.at(0), .width = tensor(x).shape.at(1), .along_rows = reduction == Reduction::columns};
  const std::int64_t length = shape.along_rows ? shape.width : shape.rows;
  shape.block = scale_block(recipe().fp8, length);
  const std::int64_t blocks = (length + shape.block - 1) / shape.block;
  operand.scale_inv = transient(codes_name + ".scale_inv", TensorClass::scaling_state, scale_format(recipe().fp8),
                                shape.along_rows ? std::vector{shape.rows, blocks} : std::vector{blocks, shape.width});
  operand.source = x;
  if (!is_made) quantize_blocks(x, base, number, operand, shape);
  return operand;
}

void ProgramBuilder::quantize_tensor(TensorId x, const std::string& name, const ProductOperand& codes, bool once_a_window) {
  const std::int64_t count = tensor(x).count();
  const OperandRef scale{program_.fp8_scale, codes.scale}, counts{program_.fp8_counts, 2 * codes.scale};
  if (recipe().fp8 == Fp8Scaling::current)
    op(name + " quantize", quantize_current_problem(count, format(x), format(codes.tensor)),
       {{x}, scale, {codes.tensor}, counts, {program_.fp8_scale_counts}, {control()}});
  else
    op(name + " quantize", quantize_problem(count, format(x), format(codes.tensor), accumulates() && !once_a_window),
       {{x}, scale, {codes.tensor}, {program_.fp8_amax, codes.scale}, counts, {control()}});
}

void ProgramBuilder::quantize_blocks(TensorId x, const std::string& name, int number, const ProductOperand& codes,
                                     const BlockShape& shape) {
  op(name + " quantize", quantize_blocks_problem(shape, format(x), format(codes.tensor), format(codes.scale_inv)),
     {{x}, {codes.tensor}, {codes.scale_inv}, {program_.fp8_counts, 2 * number}, {program_.fp8_scale_counts}, {control()}});
}

ProductOperand ProgramBuilder::product_operand(TensorId x, Format wanted, const std::string& name, Reduction reduction) {
  if (format(x) == wanted) return {.tensor = x};
  const TensorClass tensor_class = tensor(x).tensor_class;
  if (is_fp8(wanted)) return quantized(x, wanted, name, tensor_class, false, reduction);
  const TensorId copy = transient(name + "." + std::string(mixroof::name(wanted)), tensor_class, wanted, tensor(x).shape);
  op(name + " cast", cast_problem(tensor(x).count(), format(x), wanted), {{x}, {copy}});
  return {.tensor = copy};
}

ProductOperand ProgramBuilder::weight_operand(const std::string& name, Format wanted, Reduction reduction) {
  const TensorId weight = param(name);
  if (format(weight) == wanted) return {.tensor = weight};
  if (is_fp8(wanted)) return quantized(weight, wanted, name, TensorClass::compute_copy, true, reduction);
  const std::string copy_name = name + "." + std::string(mixroof::name(wanted));
  const bool is_made = by_name_.contains(copy_name);
  const TensorId copy = transient(copy_name, TensorClass::compute_copy, wanted, tensor(weight).shape);
  if (!is_made) op(name + " cast", cast_problem(tensor(weight).count(), format(weight), wanted), {{weight}, {copy}});
  return {.tensor = copy};
}

void ProgramBuilder::product(const std::string& name, const Problem& problem, const ProductOperand& a,
                             const ProductOperand& b, TensorId bias, TensorId c) {
  std::vector<OperandRef> operands = {{a.tensor}, {b.tensor}};
  if (bias >= 0) operands.push_back({bias});
  for (const ProductOperand* x : {&a, &b}) {
    if (x->scale >= 0) operands.push_back({program_.fp8_scale, x->scale});
    if (x->scale_inv >= 0) operands.push_back({x->scale_inv});
  }
  operands.push_back({c});
  op(name, problem, std::move(operands));
}

Problem ProgramBuilder::product_problem(MatmulVariant variant, const MatmulShape& shape, const ProductOperand& a,
                                        const ProductOperand& b, Format c, bool bias, bool accumulate) const {
  MatmulScales scales;
  if (a.scale_inv >= 0) scales = {scale_block(recipe().fp8, shape.k), scale_format(recipe().fp8)};
  return with_multiples(matmul_problem(variant, shape, format(a.tensor), format(b.tensor), c, bias,
                                       bias ? recipe().params : Format::fp32, accumulate, scales),
                        program_.target.fp8_multiples);
}

TensorId ProgramBuilder::linear(const std::string& layer, const ProductOperand& x, std::int64_t in, std::int64_t out,
                                Format product_format, bool bias) {
  const Format between = recipe().between;
  const ProductOperand w = weight_operand(layer + ".weight", product_format);
  const TensorId y = activation(layer + ".out", between, {rows(), out});
  const TensorId b = bias ? param(layer + ".bias") : -1;
  product(layer + " forward", product_problem(MatmulVariant::forward, {.m = rows(), .n = out, .k = in}, x, w, between, bias), x,
          w, b, y);
  return y;
}

TensorId ProgramBuilder::linear_backward(const std::string& layer, TensorId dy, const ProductOperand& x, std::int64_t in,
                                         std::int64_t out, Format product_format, Format product_gradient, bool bias) {
  const Format between = recipe().between, grads = program_.grad_format;
  // The output gradient in the format between ops: what the bias sums, and what is quantized for the products.
  const TensorId dy_between = product_operand(dy, between, layer + ".dout").tensor;
  // The gradient of the weights sums over tokens, that of the input over output features: with block scales each takes
  // codes of its own, made along its sum.
  const bool by_blocks = scales_by_blocks(product_gradient);
  const ProductOperand g = product_operand(dy_between, product_gradient, layer + ".dout");
  const ProductOperand g_tokens =
      by_blocks ? product_operand(dy_between, product_gradient, layer + ".dout", Reduction::rows) : g;
  const ProductOperand x_tokens = by_blocks ? product_operand(x.source, product_format, layer + ".in", Reduction::rows) : x;
  const ProductOperand w = weight_operand(layer + ".weight", product_format, Reduction::rows);
  if (bias)
    op(layer + " bias_grad", bias_grad_problem(rows(), out, between, grads, accumulates()),
       {{dy_between}, {grad(layer + ".bias")}});
  product(layer + " wgrad",
          product_problem(MatmulVariant::wgrad, {.m = out, .n = in, .k = rows()}, g_tokens, x_tokens, grads, false,
                          accumulates()),
          g_tokens, x_tokens, -1, grad(layer + ".weight"));
  const TensorId dx = gradient(layer + ".din", between, {rows(), in});
  product(layer + " dgrad", product_problem(MatmulVariant::dgrad, {.m = rows(), .n = in, .k = out}, g, w, between), g, w, -1, dx);
  return dx;
}

void ProgramBuilder::update_section() {
  begin(SectionKind::update);
  set_phase(Phase::update);
  set_layer(-1);
  UpdateConstants update = options_.update;
  update.beta1 = options_.optimizer.beta1;
  update.beta2 = options_.optimizer.beta2;
  update.dynamic_scale = options_.dynamic_scale && recipe().loss_scaling == LossScaling::dynamic;

  bool is_first = true;
  for (const Program::Parameter& p : program_.parameters) {
    op(p.name + " grad_check", grad_check_problem(tensor(p.grad).count(), program_.grad_format, !is_first),
       {{p.grad}, {control()}});
    is_first = false;
  }
  op("decide", decide_problem(update), {{control()}});
  for (const Program::Parameter& p : program_.parameters) {
    AdamwConstants constants = options_.optimizer;
    if (tensor(p.param).shape.size() < 2 && !options_.decay_all) constants.weight_decay = 0;
    std::vector<OperandRef> operands = {{p.grad}, {p.param}};
    if (p.master >= 0) operands.push_back({p.master});
    for (const TensorId id : {p.moment1, p.moment2, control()}) operands.push_back({id});
    op(p.name + " adamw",
       adamw_problem(tensor(p.grad).count(), program_.grad_format, recipe().params, p.master >= 0, recipe().moments, constants),
       std::move(operands));
  }
  if (recipe().uses_fp8()) resize_fp8_state();
  if (recipe().fp8 == Fp8Scaling::delayed)
    op("fp8_scale",
       fp8_scale_problem(static_cast<std::int64_t>(scale_formats_.size()), options_.fp8_history, options_.fp8_margin),
       {{program_.fp8_amax}, {program_.fp8_history}, {program_.fp8_limits}, {program_.fp8_scale}, {program_.fp8_scale_counts}});
  op("advance", advance_problem(update), {{control()}});
}

void ProgramBuilder::resize_fp8_state() {
  const auto count = static_cast<std::int64_t>(scale_formats_.size());
  const auto resize = [&](TensorId id, std::vector<std::int64_t> shape) {
    if (id >= 0) program_.tensors[static_cast<std::size_t>(id)].shape = std::move(shape);
  };
  for (const TensorId id : {program_.fp8_scale, program_.fp8_amax, program_.fp8_limits}) resize(id, {count});
  resize(program_.fp8_history, {options_.fp8_history, count});
  resize(program_.fp8_counts, {count, 2});
  resize(program_.fp8_scale_counts, {2});
  program_.fp8_formats = scale_formats_;
}

}  // namespace mixroof
