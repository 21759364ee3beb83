#include "harness/measure/device_document.h"

namespace mixroof {
namespace {

/// By format; null where nothing computes with it here.
Json flushes_subnormals_json(const ArithmeticFacts& arithmetic) {
  Json by_format = Json::object();
  for (const Format format : {Format::fp32, Format::fp16, Format::bf16, Format::fp8_e4m3, Format::fp8_e5m2})
    by_format[name(format)] = optional_or_null(arithmetic.flushes_subnormals(format));
  return by_format;
}

}  // namespace

Json arithmetic_json(const ArithmeticFacts& arithmetic) {
  Json conversions = Json::array(), products = Json::array();
  for (const ConversionFacts& c : arithmetic.conversions)
    conversions.push_back({{"from", name(Format::fp32)},
                           {"to", name(c.to)},
                           {"implementation", c.implementation},
                           {"rounding", name(c.rounding)},
                           {"flushes_subnormals", c.flushes_subnormals}});
  for (const ProductFacts& p : arithmetic.products)
    products.push_back({{"input", name(p.input)},
                        {"implementation", p.implementation},
                        {"emulated", p.emulated},
                        {"flushes_subnormal_inputs", p.flushes_subnormal_inputs},
                        {"flushes_subnormal_results", optional_or_null(p.flushes_subnormal_results)},
                        {"accumulator_mantissa_bits", p.accumulator_mantissa_bits},
                        {"accumulator_rounding", name(p.accumulator_rounding)}});
  return {{"conversions", std::move(conversions)},
          {"products", std::move(products)},
          {"addition",
           {{"implementation", arithmetic.addition.implementation},
            {"flushes_subnormals", arithmetic.addition.flushes_subnormals}}}};
}

Json device_json(const DeviceFacts& facts, const ArithmeticFacts& arithmetic) {
  Json caches = Json::array();
  for (const Cache& cache : facts.caches)
    caches.push_back({{"level", cache.level}, {"bytes", cache.bytes}, {"shared_by_cores", cache.shared_by_cores}});
  return {{"backend", facts.backend},
          {"name", facts.name},
          {"arch", facts.arch},
          {"units", facts.units},
          {"clock_hz", nullptr},
          {"caches", std::move(caches)},
          {"memory_bytes", facts.memory_bytes},
          {"power_limit_w", nullptr},
          {"driver", nullptr},
          {"catalog", nullptr},
          {"flushes_subnormals", flushes_subnormals_json(arithmetic)},
          {"tf32_rounding", nullptr},
          {"arithmetic", arithmetic_json(arithmetic)}};
}

}  // namespace mixroof
