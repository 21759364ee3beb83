// SHA-256 by libcrypto, for the identity of data, workloads and saved state.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mixroof {

/// A digest of bytes that come in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(std::span<const unsigned char> bytes);
  void add(std::string_view text) { add(std::span(reinterpret_cast<const unsigned char*>(text.data()), text.size())); }
  /// Lower-case hexadecimal; ends the digest.
  std::string hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// Lower-case hexadecimal.
std::string sha256_hex(std::span<const unsigned char> bytes);
inline std::string sha256_hex(std::string_view text) {
  return sha256_hex(std::span(reinterpret_cast<const unsigned char*>(text.data()), text.size()));
}

}  // namespace mixroof
