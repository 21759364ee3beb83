// The probe on this machine, and on devices that are made to round otherwise: what it reports must follow.
#include "harness/execute/arithmetic_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace mixroof {
namespace {

/// A CPU whose results are changed on their way out, as if its arithmetic had rounded so.
class OtherArithmetic : public Backend {
 public:
  explicit OtherArithmetic(std::function<double(Format, double)> change)
      : cpu_(make_cpu_backend(1)), change_(std::move(change)) {}

  const DeviceFacts& facts() const override { return cpu_->facts(); }
  Target target() const override { return cpu_->target(); }
  std::int64_t storage_bytes(Format format, std::int64_t count) const override {
    return cpu_->storage_bytes(format, count);
  }
  MemoryResource& memory() override { return cpu_->memory(); }
  std::int64_t memory_free_bytes() const override { return cpu_->memory_free_bytes(); }
  void write(void* to, Format format, std::span<const double> values) override { cpu_->write(to, format, values); }
  void read(const void* from, Format format, std::span<double> values) override {
    cpu_->read(from, format, values);
    for (double& value : values) value = change_(format, value);
  }
  void copy(void* to, const void* from, std::int64_t bytes) override { cpu_->copy(to, from, bytes); }
  void fill_bytes(void* to, unsigned char value, std::int64_t bytes) override { cpu_->fill_bytes(to, value, bytes); }
  Support supports(const Problem& problem) const override { return cpu_->supports(problem); }
  std::unique_ptr<Plan> prepare(const Problem& problem, std::string_view forced) override {
    return cpu_->prepare(problem, forced);
  }
  std::vector<std::string> implementations(const Problem& problem) const override {
    return cpu_->implementations(problem);
  }
  TuningRecord& tuning() override { return cpu_->tuning(); }
  void run(const Plan& plan, std::span<void* const> operands, void* workspace) override {
    cpu_->run(plan, operands, workspace);
  }
  void reserve_marks(std::size_t count) override { cpu_->reserve_marks(count); }
  void mark(std::size_t number) override { cpu_->mark(number); }
  void synchronize() override { cpu_->synchronize(); }
  double seconds_between(std::size_t from, std::size_t to) const override { return cpu_->seconds_between(from, to); }
  void chill() override { cpu_->chill(); }

 private:
  std::unique_ptr<Backend> cpu_;
  std::function<double(Format, double)> change_;
};

/// `value` with `bits` mantissa bits after the leading one, cut.
double cut(double value, int bits) {
  if (value == 0) return value;
  const double spacing = std::ldexp(1.0, std::ilogb(value) - bits);
  return std::trunc(value / spacing) * spacing;
}

std::vector<ProductFacts> own_products(const ArithmeticFacts& found) {
  std::vector<ProductFacts> own;
  for (const ProductFacts& product : found.products)
    if (product.implementation.rfind("mixroof", 0) == 0) own.push_back(product);
  return own;
}

TEST(ArithmeticProbe, OwnKernelsRoundToNearestEvenIn23BitsAndKeepSubnormals) {
  const std::unique_ptr<Backend> cpu = make_cpu_backend(2);
  const ArithmeticFacts found = probe_arithmetic(*cpu);
  ASSERT_EQ(found.conversions.size(), 4u) << "fp16, bf16, fp8_e4m3, fp8_e5m2";
  for (const ConversionFacts& conversion : found.conversions) {
    EXPECT_EQ(conversion.rounding, Rounding::nearest_even) << name(conversion.to);
    EXPECT_FALSE(conversion.flushes_subnormals) << name(conversion.to);
  }
  const std::vector<ProductFacts> own = own_products(found);
  ASSERT_GE(own.size(), 5u) << "one a format";
  for (const ProductFacts& product : own) {
    EXPECT_EQ(product.accumulator_mantissa_bits, 23) << name(product.input);
    EXPECT_EQ(product.accumulator_rounding, Rounding::nearest_even) << name(product.input);
    EXPECT_FALSE(product.flushes_subnormal_inputs) << name(product.input);
    const bool can_be_subnormal = product.input == Format::fp32 || product.input == Format::bf16;
    EXPECT_EQ(product.flushes_subnormal_results, can_be_subnormal ? std::optional(false) : std::nullopt)
        << name(product.input);
  }
  EXPECT_FALSE(found.addition.flushes_subnormals);
  EXPECT_EQ(found.flushes_subnormals(Format::fp16), false);
  EXPECT_EQ(found.flushes_subnormals(Format::tf32), std::nullopt) << "not probed";
}

TEST(ArithmeticProbe, ADeviceThatFlushesIsFound) {
  OtherArithmetic device(
      [](Format format, double value) { return std::fabs(value) < facts(format).min_normal ? 0 : value; });
  const ArithmeticFacts found = probe_arithmetic(device);
  for (const ConversionFacts& conversion : found.conversions) EXPECT_TRUE(conversion.flushes_subnormals);
  for (const ProductFacts& product : found.products)
    if (product.flushes_subnormal_results) {
      EXPECT_TRUE(*product.flushes_subnormal_results) << product.implementation;
    }
  EXPECT_TRUE(found.addition.flushes_subnormals);
  EXPECT_EQ(found.flushes_subnormals(Format::fp32), true);
}

TEST(ArithmeticProbe, ANarrowAccumulatorThatCutsIsFound) {
  OtherArithmetic device([](Format, double value) { return cut(value, 13); });
  for (const ProductFacts& product : own_products(probe_arithmetic(device))) {
    EXPECT_EQ(product.accumulator_mantissa_bits, 13) << name(product.input);
    EXPECT_EQ(product.accumulator_rounding, Rounding::toward_zero) << name(product.input);
  }
}

TEST(ArithmeticProbe, AConversionThatBreaksTiesAwayFromZeroIsTold) {
  // The codes of 1 + 1/2 spacing come out as 1 + 1 spacing; everything else as it was.
  OtherArithmetic device([](Format format, double value) {
    static int calls = 0;
    if (format != Format::bf16) return value;
    const int place = calls++ % 6;
    return place == 1 ? 1 + facts(format).epsilon : value;
  });
  for (const ConversionFacts& conversion : probe_arithmetic(device).conversions)
    if (conversion.to == Format::bf16) {
      EXPECT_EQ(conversion.rounding, Rounding::nearest_away);
    }
}

}  // namespace
}  // namespace mixroof
