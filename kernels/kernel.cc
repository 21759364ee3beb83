#include "kernels/kernel.h"

#include <fmt/format.h>

#include <cmath>
#include <stdexcept>

#include "harness/numeric/checked.h"

namespace mixroof {

std::int64_t Problem::dim(std::string_view key) const {
  for (const auto& [name, value] : shape)
    if (name == key) return value;
  throw std::logic_error(fmt::format("{}/{} has no dimension '{}'", kernel, variant, key));
}

std::int64_t Problem::dim_or(std::string_view key, std::int64_t otherwise) const {
  for (const auto& [name, value] : shape)
    if (name == key) return value;
  return otherwise;
}

double Problem::constant(std::string_view key) const {
  for (const auto& [name, value] : constants)
    if (name == key) return value;
  throw std::logic_error(fmt::format("{}/{} has no constant '{}'", kernel, variant, key));
}

std::string Problem::shape_text() const {
  std::string text;
  for (const auto& [name, value] : shape) text += fmt::format("{}{}={}", text.empty() ? "" : ",", name, value);
  return text;
}

std::string Problem::id() const {
  std::string id = fmt::format("{}/{}/{}/", kernel, variant, shape_text());
  for (std::size_t i = 0; i < formats.size(); ++i) id += fmt::format("{}{}", i ? "," : "", name(formats[i]));
  if (accumulate) id += "/accumulate";
  return id;
}

std::int64_t Operand::count() const {
  std::int64_t count = 1;
  for (const std::int64_t size : extent) count = checked_product({count, size});
  return count;
}

std::int64_t Operand::bytes() const { return checked_product({count(), bytes_of(format)}); }

std::int64_t Cost::total_useful_flops() const {
  std::int64_t total = 0;
  for (const std::int64_t flops : useful_flops) total = checked_sum(total, flops);
  return total;
}

void Cost::add_flops(Format format, std::int64_t flops) {
  const auto index = static_cast<std::size_t>(format);
  useful_flops[index] = checked_sum(useful_flops[index], flops);
  padded_flops[index] = checked_sum(padded_flops[index], flops);
}

std::string_view name(CostCategory category) {
  switch (category) {
    case CostCategory::matmul: return "matmul";
    case CostCategory::attention: return "attention";
    case CostCategory::cast: return "cast";
    case CostCategory::quantize: return "quantize";
    case CostCategory::scaling_check: return "scaling_check";
    case CostCategory::optimizer: return "optimizer";
    case CostCategory::other: return "other";
  }
  return "other";
}

Cost Kernel::compulsory_bytes(const Problem& problem) const {
  Cost cost;
  for (const Operand& operand : operands(problem)) {
    if (operand.access != Access::write) cost.bytes_read = checked_sum(cost.bytes_read, operand.bytes());
    if (operand.access != Access::read) cost.bytes_written = checked_sum(cost.bytes_written, operand.bytes());
  }
  return cost;
}

double rounding_limit(Format format, double reference) {
  const FormatFacts& f = facts(format);
  return f.unit_roundoff * std::fabs(reference) * (1 + f.epsilon) + f.min_subnormal / 2;
}

}  // namespace mixroof
