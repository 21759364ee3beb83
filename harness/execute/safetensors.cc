#include "harness/execute/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

#include "harness/execute/sha256.h"
#include "harness/numeric/checked.h"
#include "harness/status.h"

namespace mixroof {
namespace {

using nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "values are written as they lie in memory");

constexpr std::int64_t kPiece = std::int64_t{4} << 20;
constexpr std::int64_t kMostHeader = 100'000'000;  // the limit of the format's own readers
constexpr std::int64_t kLengthBytes = 8;

struct DType {
  Format format;
  const char* name;
};
constexpr DType kDTypes[] = {{Format::fp64, "F64"},         {Format::fp32, "F32"},    {Format::fp16, "F16"},
                             {Format::bf16, "BF16"},        {Format::int32, "I32"},   {Format::fp8_e4m3, "F8_E4M3"},
                             {Format::fp8_e5m2, "F8_E5M2"}, {Format::e8m0, "F8_E8M0"}};

const char* dtype_of(Format format) {
  for (const DType& row : kDTypes)
    if (row.format == format) return row.name;
  throw std::logic_error(fmt::format("safetensors has no dtype for {}", name(format)));
}

std::optional<Format> format_of(const std::string& dtype) {
  for (const DType& row : kDTypes)
    if (row.name == dtype) return row.format;
  return std::nullopt;
}

std::string header_text(const std::vector<StoredTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  ordered_json header = {{"__metadata__", metadata}};
  std::int64_t offset = 0;
  for (const StoredTensor& tensor : tensors) {
    const std::int64_t end = checked_sum(offset, tensor.bytes());
    header[tensor.name] = {
        {"dtype", dtype_of(tensor.format)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

/// Text and digest go the same way.
class HashedFile {
 public:
  explicit HashedFile(const std::filesystem::path& path) : file_(path) {}
  void write(std::string_view bytes) {
    file_.write(bytes);
    digest_.add(bytes);
    written_.bytes += static_cast<std::int64_t>(bytes.size());
  }
  WrittenFile commit() {
    written_.sha256 = digest_.hex();
    file_.commit();
    return written_;
  }

 private:
  AtomicFile file_;
  Sha256 digest_;
  WrittenFile written_;
};

std::string_view as_text(std::span<const unsigned char> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::int64_t StoredTensor::count() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count = checked_product({count, size});
  return count;
}

WrittenFile write_safetensors(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors,
                              const std::map<std::string, std::string>& metadata, const TensorSource& source) {
  const std::string header = header_text(tensors, metadata);
  HashedFile file(path);
  const auto length = std::bit_cast<std::array<unsigned char, kLengthBytes>>(static_cast<std::uint64_t>(header.size()));
  file.write(as_text(length));
  file.write(header);
  std::vector<unsigned char> piece;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    for (std::int64_t at = 0; at < tensors[i].bytes(); at += kPiece) {
      piece.resize(static_cast<std::size_t>(std::min(kPiece, tensors[i].bytes() - at)));
      source(i, at, piece);
      file.write(as_text(piece));
    }
  return file.commit();
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!fd_.is_open()) refuse(fmt::format("cannot be opened: {}", std::strerror(errno)));
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0 || !S_ISREG(status.st_mode)) refuse("is no file");
  bytes_ = status.st_size;
  read_header();
}

void SafetensorsFile::refuse(const std::string& what) const {
  throw UsageError(fmt::format("{}: {}", path_.string(), what));
}

void SafetensorsFile::read_at(std::int64_t offset, std::span<unsigned char> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_.get(), out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      refuse(
          fmt::format("cannot be read at byte {}: {}", offset, got < 0 ? std::strerror(errno) : "the file ends there"));
    out = out.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
}

void SafetensorsFile::read_header() {
  if (bytes_ < kLengthBytes)
    refuse(fmt::format("is no safetensors file: {} bytes, the length of its header takes 8", bytes_));
  std::array<unsigned char, kLengthBytes> raw;
  read_at(0, raw);
  const auto length = std::bit_cast<std::uint64_t>(raw);
  if (length > static_cast<std::uint64_t>(std::min(kMostHeader, bytes_ - kLengthBytes)))
    refuse(fmt::format("is no safetensors file or is cut: its header says {} bytes, the file has {}", length, bytes_));
  std::vector<unsigned char> text(static_cast<std::size_t>(length));
  read_at(kLengthBytes, text);
  data_begin_ = kLengthBytes + static_cast<std::int64_t>(length);

  // The parser keeps the last of equal keys: seen while parsing.
  std::set<std::string> names;
  std::string repeated;
  const auto notice = [&](int depth, ordered_json::parse_event_t event, ordered_json& value) {
    if (depth == 1 && event == ordered_json::parse_event_t::key && !names.insert(value.get<std::string>()).second)
      repeated = value.get<std::string>();
    return true;
  };
  const ordered_json header = ordered_json::parse(text.begin(), text.end(), notice, /*allow_exceptions=*/false);
  if (!header.is_object()) refuse("its header is no JSON object");
  if (!repeated.empty()) refuse(fmt::format("tensor '{}' stands twice in its header", repeated));

  std::int64_t expected = 0;
  for (const auto& [name, entry] : header.items()) {
    try {
      if (name == "__metadata__") {
        metadata_ = entry.get<std::map<std::string, std::string>>();
        continue;
      }
      StoredTensor tensor{.name = name, .shape = entry.at("shape").get<std::vector<std::int64_t>>()};
      const auto dtype = entry.at("dtype").get<std::string>();
      const auto offsets = entry.at("data_offsets").get<std::array<std::int64_t, 2>>();
      const std::optional<Format> format = format_of(dtype);
      if (!format) refuse(fmt::format("tensor '{}' has dtype {}, which is not known here", name, dtype));
      tensor.format = *format;
      for (const std::int64_t size : tensor.shape)
        if (size < 0) refuse(fmt::format("tensor '{}' has a dimension of {}", name, size));
      if (offsets[0] != expected || offsets[1] - offsets[0] != tensor.bytes())
        refuse(fmt::format("tensor '{}' lies at bytes {} to {}, expected {} to {} by its shape", name, offsets[0],
                           offsets[1], expected, expected + tensor.bytes()));
      offsets_.push_back(expected);
      expected = offsets[1];
      tensors_.push_back(std::move(tensor));
    } catch (const Error&) {  // a product of dimensions past 2^63 - 1
      refuse(fmt::format("tensor '{}' has a shape of more values than fit a file", name));
    } catch (const ordered_json::exception&) {
      refuse(fmt::format("the header's entry '{}' is not what the format says", name));
    }
  }
  if (data_begin_ + expected != bytes_)
    refuse(fmt::format("has {} bytes, its header says {}", bytes_, data_begin_ + expected));
}

int SafetensorsFile::find(std::string_view name) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (tensors_[i].name == name) return static_cast<int>(i);
  return -1;
}

std::vector<unsigned char> SafetensorsFile::read(std::size_t tensor) const {
  std::vector<unsigned char> values(static_cast<std::size_t>(tensors_[tensor].bytes()));
  read_at(data_begin_ + offsets_[tensor], values);
  return values;
}

std::string SafetensorsFile::sha256() const {
  Sha256 digest;
  std::vector<unsigned char> piece;
  for (std::int64_t at = 0; at < bytes_; at += kPiece) {
    piece.resize(static_cast<std::size_t>(std::min(kPiece, bytes_ - at)));
    read_at(at, piece);
    digest.add(piece);
  }
  return digest.hex();
}

}  // namespace mixroof
