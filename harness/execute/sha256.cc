#include "harness/execute/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "harness/status.h"

namespace mixroof {
namespace {

void require(bool done) {
  if (!done) throw Error(Status::failed, "libcrypto computes no SHA-256; check its configuration (openssl dgst -sha256)");
}

}  // namespace

struct Sha256::Context {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  require(context_->context != nullptr && EVP_DigestInit_ex(context_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const unsigned char> bytes) {
  require(EVP_DigestUpdate(context_->context, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned int size = 0;
  require(EVP_DigestFinal_ex(context_->context, digest.data(), &size) == 1);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

std::string sha256_hex(std::span<const unsigned char> bytes) {
  Sha256 digest;
  digest.add(bytes);
  return digest.hex();
}

}  // namespace mixroof
