// Builds without oneDNN (MIXROOF_ONEDNN=OFF).
#include "kernels/matmul/matmul_library.h"

namespace mixroof {

std::span<const Implementation> matmul_onednn() { return {}; }

}  // namespace mixroof
