// Recipes: where each format sits in an update, and how gradients and FP8 tensors are scaled. A recipe is one row of the
// table in recipe.cc; casts, byte counts, error limits and extra ops are computed from the row, never from its name.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/numeric/format.h"

namespace mixroof {

enum class LossScaling : std::uint8_t { none, dynamic };
/// How FP8 tensors get their scales; `none` for recipes without FP8. `delayed`: one a tensor, from the amaxes of past
/// windows; the others from the very values that are quantized: `current` one a tensor, `channel` one a row along the
/// product's reduction, `block128` and `mx32` one for 128 or 32 values along it (mx32: powers of two, E8M0).
enum class Fp8Scaling : std::uint8_t { none, delayed, current, channel, block128, mx32 };
std::string_view name(Fp8Scaling scaling);
/// Whether a whole tensor has one scale, so that its codes serve every product.
inline bool is_per_tensor(Fp8Scaling s) { return s == Fp8Scaling::delayed || s == Fp8Scaling::current; }

struct Recipe {
  std::string_view name;
  std::string_view summary;          // one sentence for lists and help
  Format params;                     // the parameters that the forward pass reads
  std::optional<Format> master;      // copy that the optimizer updates, when params are narrower
  Format grads;                      // weight gradients of a window of one micro-batch
  Format moments;                    // both AdamW moments
  Format matmul_forward;             // inputs of the layer linears' forward products
  Format matmul_gradient;            // output gradients in the layer linears' backward products
  Format between;                    // matrix-product outputs, attention, activations, their gradients, the head
  Format stream;                     // residual stream, norm outputs and their gradients
  LossScaling loss_scaling = LossScaling::none;
  Fp8Scaling fp8 = Fp8Scaling::none;
  bool variation = false;            // varies the row before it in one respect; left out of "main"
  bool diagnostic = false;           // made to show one loss; never a recommendation
  std::string_view shows = {};       // the loss a diagnostic recipe shows

  bool casts_weights() const { return params == Format::fp32 && is_16_bit(matmul_forward); }  // autocast family
  bool uses_fp8() const { return fp8 != Fp8Scaling::none; }
  /// Bytes of persistent state per parameter: params, master, grads and both moments. `fp32_window` when a window of
  /// several micro-batches accumulates its gradients in fp32.
  int bytes_per_parameter(bool fp32_window = false) const;
};

std::span<const Recipe> all_recipes();
/// Throws UsageError with the nearest names.
const Recipe& find_recipe(std::string_view name);
/// Names separated by commas; "all" stands for every recipe of the table (diagnostic ones last), "main" for those that are
/// neither diagnostic nor a variation. Empty, unknown and repeated names throw UsageError.
std::vector<const Recipe*> parse_recipes(std::string_view list);

}  // namespace mixroof
