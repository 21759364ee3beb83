// Numbers of `mixroof explain fp8`: scales of FP8 tensors (cases.md NUM-1, FP8-1, FP8-2).
#pragma once

#include "harness/cli/explain/workbench.h"

namespace mixroof::cli {

/// What the quantize kernel makes of FP32 values.
struct Quantized {
  Values values;              // codes decoded and divided by the scale
  double amax = 0;            // NaN or infinity when one is there
  double saturated = 0, flushed = 0;
  bool found_inf = false;
};
Quantized quantize(Workbench& bench, Format format, const Values& x, double scale);

/// The scale for the next window after windows with these maxima, oldest first, each taken into a history of 4 (the
/// fp8_scale kernel, no margin).
double scale_after(Workbench& bench, Format format, const Values& amaxes, double initial_scale = 1);

/// amax of one window over the largest magnitudes of its micro-batches, by the quantize kernel.
double window_amax(Workbench& bench, const Values& micro_batch_magnitudes);

/// Windows whose largest magnitude is given, each quantized as {amax, amax/2, amax/4, amax/8} in E4M3: with the scale
/// of the windows before (delayed) and with its own (current).
struct ScaledWindow {
  double amax;
  double delayed_scale, delayed_saturated;
  double current_scale, current_saturated;
};
std::vector<ScaledWindow> follow_scales(Workbench& bench, const Values& amaxes);

/// `count` normal values quantized to E4M3 with a scale `factor` times 448 / amax.
struct ScaledNormals {
  double scale, saturated, flushed;
  double relative_error;  // L2
};
ScaledNormals quantize_normals(Workbench& bench, std::int64_t count, double factor);

}  // namespace mixroof::cli
