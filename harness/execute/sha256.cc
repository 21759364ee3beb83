#include "harness/execute/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "harness/status.h"

namespace mixroof {

std::string sha256_hex(std::span<const unsigned char> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1)
    throw Error(Status::failed, "libcrypto computes no SHA-256; check its configuration (openssl dgst -sha256)");
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace mixroof
