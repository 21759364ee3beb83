// Tensors in a file of the safetensors layout (huggingface.co/docs/safetensors): 8 bytes little-endian length of the
// header, a JSON header {"name": {"dtype", "shape", "data_offsets"}, "__metadata__"}, padded with spaces to a multiple
// of 8, then the values, little-endian, one tensor after the other without gaps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "harness/atomic_file.h"
#include "harness/numeric/format.h"

namespace mixroof {

struct StoredTensor {
  std::string name;
  Format format = Format::fp32;
  std::vector<std::int64_t> shape;

  std::int64_t count() const;  // checked
  std::int64_t bytes() const { return count() * bytes_of(format); }
};

/// Copies bytes [offset, offset + out.size()) of tensor number `tensor` into `out`.
using TensorSource = std::function<void(std::size_t tensor, std::int64_t offset, std::span<unsigned char> out)>;

struct WrittenFile {
  std::int64_t bytes = 0;
  std::string sha256;
};

/// Writes the file whole or not at all (atomic_file.h), in pieces of a few MiB. Throws Error(failed) with the system's
/// reason.
WrittenFile write_safetensors(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors,
                              const std::map<std::string, std::string>& metadata, const TensorSource& source);

/// A file opened for reading, its header checked: sizes within the file, offsets without gap or overlap that fit shape
/// and dtype, known dtypes, no name twice. Throws UsageError naming file, tensor, what was expected and what was found.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::int64_t bytes() const { return bytes_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// -1 when there is none of this name.
  int find(std::string_view name) const;
  /// Values of a tensor as they are stored.
  std::vector<unsigned char> read(std::size_t tensor) const;
  /// Of the whole file.
  std::string sha256() const;

 private:
  [[noreturn]] void refuse(const std::string& what) const;
  void read_header();
  void read_at(std::int64_t offset, std::span<unsigned char> out) const;

  std::filesystem::path path_;
  FileDescriptor fd_;
  std::int64_t bytes_ = 0, data_begin_ = 0;
  std::vector<StoredTensor> tensors_;
  std::vector<std::int64_t> offsets_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace mixroof
