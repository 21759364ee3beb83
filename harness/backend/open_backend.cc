#include <array>
#include <charconv>
#include <string>

#include "harness/backend/backend.h"

namespace mixroof {

BackendResult open_backend(std::string_view device, int threads) {
  if (device == "cpu") return {make_cpu_backend(threads), {}};
  if (device == "reference") return {make_reference_backend(), {}};
  if (device == "cuda" || device.starts_with("cuda:"))
    return {nullptr, Support::no("this build has no CUDA backend yet (use --device cpu)")};
  const std::array<std::string, 3> valid = {"cpu", "reference", "cuda"};
  throw_unknown("device", device, valid, "mixroof doctor");
}

}  // namespace mixroof
