// SHA-256 by libcrypto, for the identity of data and workloads.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace mixroof {

/// Lower-case hexadecimal.
std::string sha256_hex(std::span<const unsigned char> bytes);
inline std::string sha256_hex(std::string_view text) {
  return sha256_hex(std::span(reinterpret_cast<const unsigned char*>(text.data()), text.size()));
}

}  // namespace mixroof
