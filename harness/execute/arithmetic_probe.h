// How a device really rounds: facts found by feeding numbers to the very kernels that training runs, never assumed. A
// format's data sheet says what values exist; whether arithmetic flushes subnormals, how a conversion breaks ties and
// how wide an accumulator is differs between devices and between libraries on one device.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/backend/backend.h"

namespace mixroof {

enum class Rounding : std::uint8_t { nearest_even, nearest_away, toward_zero, other };
std::string_view name(Rounding rounding);

/// A conversion from fp32 to a narrower format, by the kernel that recipes use for it.
struct ConversionFacts {
  Format to = Format::fp16;
  std::string implementation;
  Rounding rounding = Rounding::other;
  bool flushes_subnormals = false;  // subnormals of `to` come out as zero
};

/// A matrix product by one implementation. Inputs of one format, accumulated and returned in fp32.
struct ProductFacts {
  Format input = Format::fp32;
  std::string implementation;
  bool emulated = false;
  bool flushes_subnormal_inputs = false;
  /// Whether products below the smallest normal fp32 number become zero; nothing where products of two values of the
  /// format cannot be that small.
  std::optional<bool> flushes_subnormal_results;
  /// Stored mantissa bits that a sum keeps beside a term of 1 (fp32: 23).
  int accumulator_mantissa_bits = 0;
  Rounding accumulator_rounding = Rounding::other;
};

/// An addition of two fp32 values by the residual kernel.
struct AdditionFacts {
  std::string implementation;
  bool flushes_subnormals = false;
};

struct ArithmeticFacts {
  std::vector<ConversionFacts> conversions;
  std::vector<ProductFacts> products;
  AdditionFacts addition;

  /// Whether anything that computes with this format flushes its subnormals; nothing when it was not probed.
  std::optional<bool> flushes_subnormals(Format format) const;
};

/// Probes every conversion and every implementation of a product that the backend has; milliseconds.
ArithmeticFacts probe_arithmetic(Backend& backend);

}  // namespace mixroof
