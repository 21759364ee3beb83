// Compiled once per Highway target; only what touches vectors is inside the per-target part.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/matmul_gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "harness/backend/cpu/parallel.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/matmul/matmul_gemm.h"
#include "kernels/row_buffer.h"

// What all targets share, once.
#ifndef MIXROOF_KERNELS_MATMUL_GEMM_SHARED
#define MIXROOF_KERNELS_MATMUL_GEMM_SHARED
namespace mixroof::gemm_detail {

// Grains are common multiples of the tiles of all targets, so that a plan made anywhere fits everywhere.
constexpr std::int64_t kRowGrain = 42, kColumnGrain = 32, kDepthGrain = 16;
// A panel of a (168 KiB) lives in L2, a strip of b (16 KiB on AVX2) in L1, the rest in the last-level cache.
constexpr std::int64_t kMostPanelRows = 4 * kRowGrain, kMostDepth = 256;
constexpr std::int64_t kMostBlockRows = 3 * kMostPanelRows, kMostBlockColumns = 768;
constexpr std::int64_t kWidestTile = 32;
constexpr int kFloatsOfLine = 16;

struct Tile {
  int rows, columns;
  const char* path;
};

/// Pieces of a part's workspace; each begins on a 64-byte line. A row of scales needs no more than `stage` does.
struct Scratch {
  float* a;      // panel_m x block_k, packed
  float* b;      // block_k x block_n, packed
  float* c;      // block_m x block_n, tile by tile
  float* stage;  // decoded rows on their way into a panel
  float* zeros;  // block_k zeros: rows beyond the edge
  float* bias;   // block_n each
  float* addend;
  float* row;
  float* scales;
};

/// Half-open ranges of one part or block.
struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

}  // namespace mixroof::gemm_detail
#endif

HWY_BEFORE_NAMESPACE();
namespace mixroof {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using gemm_detail::kFloatsOfLine;
using gemm_detail::Range;
using gemm_detail::Scratch;

constexpr hn::ScalableTag<float> kTag;
using Vector = hn::Vec<decltype(kTag)>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(kTag));
constexpr int kTileColumns = 2 * kLanes;
constexpr int kTileRows = kLanes == 16 ? 14 : 6;  // accumulators, two of b and a broadcast fill the registers

// c tile (kTileRows x kTileColumns, contiguous) = or += packed a strip · packed b strip over `depth`.
void multiply_tile(std::int64_t depth, const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, float* HWY_RESTRICT c,
                   bool is_first) {
  // The tile is needed last and may be far away.
  for (int i = 0; i < kTileRows * kTileColumns; i += kFloatsOfLine) hwy::Prefetch(c + i);
  Vector sum[kTileRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) sum[r][0] = sum[r][1] = hn::Zero(kTag);
  for (std::int64_t p = 0; p < depth; ++p) {
    const Vector b0 = hn::Load(kTag, b), b1 = hn::Load(kTag, b + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      const Vector ar = hn::Set(kTag, a[r]);
      sum[r][0] = hn::MulAdd(ar, b0, sum[r][0]);
      sum[r][1] = hn::MulAdd(ar, b1, sum[r][1]);
    }
    a += kTileRows;
    b += kTileColumns;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
    float* line = c + r * kTileColumns;
    if (!is_first) {
      sum[r][0] = hn::Add(hn::Load(kTag, line), sum[r][0]);
      sum[r][1] = hn::Add(hn::Load(kTag, line + kLanes), sum[r][1]);
    }
    hn::Store(sum[r][0], kTag, line);
    hn::Store(sum[r][1], kTag, line + kLanes);
  }
}

#if HWY_TARGET == HWY_SCALAR
constexpr std::int64_t kTranspose = 1;  // no vectors to transpose with
void transpose_block(const float* const* rows, std::int64_t at, float* HWY_RESTRICT out, std::int64_t) {
  *out = rows[0][at];
}
#else
constexpr std::int64_t kTranspose = 4;
// Four rows of four into four columns of four, `width` apart.
void transpose_block(const float* const* rows, std::int64_t at, float* HWY_RESTRICT out, std::int64_t width) {
  const hn::FixedTag<float, 4> d4;
  const auto r0 = hn::LoadU(d4, rows[0] + at), r1 = hn::LoadU(d4, rows[1] + at);
  const auto r2 = hn::LoadU(d4, rows[2] + at), r3 = hn::LoadU(d4, rows[3] + at);
  const auto low01 = hn::InterleaveLower(d4, r0, r1), low23 = hn::InterleaveLower(d4, r2, r3);
  const auto high01 = hn::InterleaveUpper(d4, r0, r1), high23 = hn::InterleaveUpper(d4, r2, r3);
  hn::StoreU(hn::ConcatLowerLower(d4, low23, low01), d4, out);
  hn::StoreU(hn::ConcatUpperUpper(d4, low23, low01), d4, out + width);
  hn::StoreU(hn::ConcatLowerLower(d4, high23, high01), d4, out + 2 * width);
  hn::StoreU(hn::ConcatUpperUpper(d4, high23, high01), d4, out + 3 * width);
}
#endif

// kWidth rows of `depth` values into one strip: for each p, the kWidth values at p.
template <int kWidth>
void transpose_strip(const float* const* rows, std::int64_t depth, float* HWY_RESTRICT strip) {
  std::int64_t p = 0;
  for (; p + kTranspose <= depth; p += kTranspose) {
    float* out = strip + p * kWidth;
    for (std::int64_t r = 0; r + kTranspose <= kWidth; r += kTranspose) transpose_block(rows + r, p, out + r, kWidth);
    // Where 4 does not divide the width the last four rows overlap the ones before.
    if constexpr (kWidth % kTranspose != 0)
      transpose_block(rows + kWidth - kTranspose, p, out + kWidth - kTranspose, kWidth);
  }
  for (; p < depth; ++p)
    for (int r = 0; r < kWidth; ++r) strip[p * kWidth + r] = rows[r][p];
}

// values[0, count) of line `line` of a k-major matrix, from p = `begin` on, times their blocks' scales.
void scale_along_k(const GemmMatrix& x, std::int64_t line, std::int64_t begin, std::int64_t count, float* HWY_RESTRICT values) {
  for (std::int64_t at = 0; at < count;) {
    const std::int64_t b = (begin + at) / x.block, end = HWY_MIN((b + 1) * x.block - begin, count);
    float one;
    const float scale = *load_row(x.scale_format, x.scale_inv, line * x.scale_stride + b, 1, &one);
    for (; at + kLanes <= end; at += kLanes)
      hn::StoreU(hn::Mul(hn::LoadU(kTag, values + at), hn::Set(kTag, scale)), kTag, values + at);
    for (; at < end; ++at) values[at] *= scale;
  }
}

// Rows `rows` of a k-major matrix, columns `depth`, into strips of kWidth rows; missing rows of the last one are zero.
template <int kWidth>
void pack_k_major(const GemmMatrix& x, Range rows, Range depth, float* HWY_RESTRICT out, const Scratch& s) {
  for (std::int64_t first = rows.begin; first < rows.end; first += kWidth) {
    const float* sources[kWidth];
    for (int r = 0; r < kWidth; ++r) {
      float* staged = s.stage + r * depth.size();
      sources[r] = first + r < rows.end
                       ? load_row(x.format, x.data, (first + r) * x.stride + depth.begin, depth.size(), staged)
                       : s.zeros;
      if (x.block > 0 && first + r < rows.end) scale_along_k(x, first + r, depth.begin, depth.size(), staged);
    }
    transpose_strip<kWidth>(sources, depth.size(), out);
    out += kWidth * depth.size();
  }
}

// product = a · b, element by element; `product` may be `a`.
void multiply(const float* a, const float* b, std::int64_t count, float* product) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(kTag, a + i), hn::LoadU(kTag, b + i)), kTag, product + i);
  for (; i < count; ++i) product[i] = a[i] * b[i];
}

// The same for a matrix whose lines run along m or n.
template <int kWidth>
void pack_lines(const GemmMatrix& x, Range rows, Range depth, float* HWY_RESTRICT out, const Scratch& s) {
  const std::int64_t strip_size = kWidth * depth.size(), full = rows.size() / kWidth, rest = rows.size() % kWidth;
  const float* scales = nullptr;
  std::int64_t block = -1;  // that `scales` belong to
  for (std::int64_t p = 0; p < depth.size(); ++p) {
    const float* line = load_row(x.format, x.data, (depth.begin + p) * x.stride + rows.begin, rows.size(), s.stage);
    if (x.block > 0) {
      const std::int64_t b = (depth.begin + p) / x.block;
      if (b != block) {
        scales = load_row(x.scale_format, x.scale_inv, b * x.scale_stride + rows.begin, rows.size(), s.scales);
        block = b;
      }
      multiply(line, scales, rows.size(), s.stage);
    }
    float* to = out + p * kWidth;
    for (std::int64_t strip = 0; strip < full; ++strip, line += kWidth, to += strip_size)
      std::memcpy(to, line, kWidth * sizeof(float));
    for (std::int64_t r = 0; rest != 0 && r < kWidth; ++r) to[r] = r < rest ? line[r] : 0.0f;
  }
}

template <int kWidth>
void pack(const GemmMatrix& x, Range rows, Range depth, float* HWY_RESTRICT out, const Scratch& s) {
  if (x.is_k_major)
    pack_k_major<kWidth>(x, rows, depth, out, s);
  else
    pack_lines<kWidth>(x, rows, depth, out, s);
}

/// What is done to a finished sum.
struct Finish {
  float scale_a, scale_b;
  bool has_scales;
  const float* bias;    // null: none
  const float* addend;  // null: none
};

// out[0, count) of one row of one tile, at column `at` of the block.
void finish_span(const float* HWY_RESTRICT sums, std::int64_t at, int count, const Finish& f, float* out) {
  int j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    Vector value = hn::Load(kTag, sums + j);
    if (f.has_scales) value = hn::Div(hn::Div(value, hn::Set(kTag, f.scale_a)), hn::Set(kTag, f.scale_b));
    if (f.bias) value = hn::Add(value, hn::LoadU(kTag, f.bias + at + j));
    if (f.addend) value = hn::Add(value, hn::LoadU(kTag, f.addend + at + j));
    hn::StoreU(value, kTag, out + at + j);
  }
  for (; j < count; ++j) {
    float value = sums[j];
    if (f.has_scales) value = value / f.scale_a / f.scale_b;
    if (f.bias) value += f.bias[at + j];
    if (f.addend) value += f.addend[at + j];
    out[at + j] = value;
  }
}

// Scales, bias, addend and the one rounding of some rows of a block, whose tiles begin at `tiles`.
void store_rows(const GemmTask& task, Range rows, Range columns, const float* tiles, const Scratch& s) {
  const std::int64_t column_tiles = (columns.size() + kTileColumns - 1) / kTileColumns;
  Finish finish{.scale_a = 1, .scale_b = 1, .has_scales = task.scale_a != nullptr, .bias = nullptr, .addend = nullptr};
  if (finish.has_scales) finish.scale_a = *task.scale_a, finish.scale_b = *task.scale_b;
  if (task.bias) finish.bias = load_row(task.bias_format, task.bias, columns.begin, columns.size(), s.bias);
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::int64_t at = row - rows.begin, first = row * task.n + columns.begin;
    const float* sums = tiles + (at / kTileRows * column_tiles * kTileRows + at % kTileRows) * kTileColumns;
    if (task.accumulate) finish.addend = load_row(task.c_format, task.c, first, columns.size(), s.addend);
    float* out = row_for_store(task.c_format, task.c, first, s.row);
    for (std::int64_t j = 0; j < column_tiles; ++j)
      finish_span(sums + j * kTileRows * kTileColumns, j * kTileColumns,
                  static_cast<int>(HWY_MIN(columns.size() - j * kTileColumns, std::int64_t{kTileColumns})), finish,
                  out);
    store_row(task.c_format, out, columns.size(), task.c, first);
  }
}

// One piece of k of a block: packs it panel by panel of a and multiplies; the last piece also stores.
void multiply_block(const GemmTask& task, const GemmBlocking& blocking, Range rows, Range columns, Range depth,
                    const Scratch& s) {
  const std::int64_t column_tiles = (columns.size() + kTileColumns - 1) / kTileColumns;
  float* tiles = s.c;
  for (std::int64_t panel = rows.begin; panel < rows.end; panel += blocking.panel_m) {
    const Range panel_rows{panel, HWY_MIN(panel + blocking.panel_m, rows.end)};
    const std::int64_t row_tiles = (panel_rows.size() + kTileRows - 1) / kTileRows;
    pack<kTileRows>(task.a, panel_rows, depth, s.a, s);
    for (std::int64_t j = 0; j < column_tiles; ++j)
      for (std::int64_t i = 0; i < row_tiles; ++i)
        multiply_tile(depth.size(), s.a + i * kTileRows * depth.size(), s.b + j * kTileColumns * depth.size(),
                      tiles + (i * column_tiles + j) * kTileRows * kTileColumns, depth.begin == 0);
    if (depth.end == task.k) store_rows(task, panel_rows, columns, tiles, s);
    tiles += row_tiles * column_tiles * kTileRows * kTileColumns;
  }
}

void run_part(const GemmTask& task, const GemmBlocking& blocking, Range rows, Range columns, const Scratch& s) {
  std::memset(s.zeros, 0, static_cast<std::size_t>(blocking.block_k) * sizeof(float));
  for (std::int64_t j = columns.begin; j < columns.end; j += blocking.block_n) {
    const Range block_columns{j, HWY_MIN(j + blocking.block_n, columns.end)};
    for (std::int64_t i = rows.begin; i < rows.end; i += blocking.block_m) {
      const Range block_rows{i, HWY_MIN(i + blocking.block_m, rows.end)};
      std::int64_t p = 0;
      do {  // once without k: the sums are then zero
        const Range depth{p, HWY_MIN(p + blocking.block_k, task.k)};
        // A b of one piece stays packed for all blocks below each other.
        if (i == rows.begin || depth.size() < task.k) pack<kTileColumns>(task.b, block_columns, depth, s.b, s);
        multiply_block(task, blocking, block_rows, block_columns, depth, s);
        p = depth.end;
      } while (p < task.k);
    }
  }
}

gemm_detail::Tile tile() {
  return {kTileRows, kTileColumns, HWY_TARGET == HWY_AVX2 ? "avx2" : HWY_TARGET == HWY_AVX3 ? "avx512" : "scalar"};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mixroof
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mixroof {
namespace {

using namespace gemm_detail;

HWY_EXPORT(run_part);
HWY_EXPORT(tile);

std::int64_t ceil_div(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }
std::int64_t round_up(std::int64_t count, std::int64_t grain) { return ceil_div(count, grain) * grain; }

/// Equal pieces of at most `most` (a multiple of `grain`), so that no thin remainder is left over.
std::int64_t balanced(std::int64_t count, std::int64_t most, std::int64_t grain) {
  return count == 0 ? 0 : round_up(ceil_div(count, ceil_div(count, most)), grain);
}

/// Time of one part per unit of k, in cycles of a processor that finishes 16 multiply-adds or packs one value in each.
std::int64_t part_cost(std::int64_t rows, std::int64_t columns) {
  return rows * columns / 16 + rows * ceil_div(columns, kMostBlockColumns) + columns * ceil_div(rows, kMostBlockRows);
}

/// Floats of each piece of a part's workspace, in the order of Scratch.
std::array<std::int64_t, 9> scratch_floats(const GemmBlocking& b) {
  const std::int64_t stage = std::max({kWidestTile * b.block_k, b.block_n, round_up(b.panel_m, 16)});
  return {b.panel_m * b.block_k,
          b.block_k * b.block_n,
          b.block_m * b.block_n,
          stage,
          b.block_k,
          b.block_n,
          b.block_n,
          b.block_n,
          std::max(b.block_n, round_up(b.panel_m, 16))};
}

std::int64_t part_floats(const GemmBlocking& b) {
  std::int64_t total = 0;
  for (const std::int64_t floats : scratch_floats(b)) total += floats;
  return total;
}

Scratch scratch_at(const GemmBlocking& b, float* base) {
  std::array<float*, 9> at;
  const auto floats = scratch_floats(b);
  for (std::size_t i = 0; i < at.size(); base += floats[i], ++i) at[i] = base;
  return {at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8]};
}

}  // namespace

GemmBlocking gemm_blocking(std::int64_t m, std::int64_t n, std::int64_t k, int threads) {
  if (m == 0 || n == 0) return {};
  // Below half a million multiply-adds per worker, waking it costs more than it saves.
  constexpr double kLeastWork = 1 << 19;
  const double work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const auto workers =
      static_cast<std::int64_t>(std::clamp(work / kLeastWork, 1.0, static_cast<double>(std::max(threads, 1))));
  GemmBlocking best;
  std::int64_t best_cost = 0;
  for (std::int64_t parts_m = 1; parts_m <= workers; ++parts_m) {
    const std::int64_t part_m = std::min(m, round_up(ceil_div(m, parts_m), kRowGrain));
    const std::int64_t part_n = std::min(n, round_up(ceil_div(n, workers / parts_m), kColumnGrain));
    const std::int64_t cost = part_cost(part_m, part_n);
    if (best_cost != 0 && cost >= best_cost) continue;
    best_cost = cost;
    best = {.parts_m = ceil_div(m, part_m), .parts_n = ceil_div(n, part_n), .part_m = part_m, .part_n = part_n};
  }
  best.block_m = balanced(best.part_m, kMostBlockRows, kRowGrain);
  best.block_n = balanced(best.part_n, kMostBlockColumns, kColumnGrain);
  best.panel_m = balanced(best.block_m, kMostPanelRows, kRowGrain);
  best.block_k = balanced(k, kMostDepth, kDepthGrain);
  return best;
}

std::int64_t gemm_workspace_bytes(const GemmBlocking& blocking) {
  return blocking.parts() * part_floats(blocking) * static_cast<std::int64_t>(sizeof(float));
}

void gemm(const GemmTask& task, const GemmBlocking& blocking, void* workspace) {
  const std::int64_t floats = part_floats(blocking);
  parallel_ranges(blocking.parts(), 1, [&](int worker, std::int64_t begin, std::int64_t end) {
    // A worker never has a higher number than its first part, so its slice is its own.
    const Scratch scratch = scratch_at(blocking, static_cast<float*>(workspace) + worker * floats);
    for (std::int64_t part = begin; part < end; ++part) {
      const std::int64_t i = part / blocking.parts_n * blocking.part_m, j = part % blocking.parts_n * blocking.part_n;
      HWY_DYNAMIC_DISPATCH(run_part)
      (task, blocking, {i, std::min(i + blocking.part_m, task.m)}, {j, std::min(j + blocking.part_n, task.n)}, scratch);
    }
  });
}

std::string gemm_path() {
  const Tile t = HWY_DYNAMIC_DISPATCH(tile)();
  return fmt::format("{} {}x{}", t.path, t.rows, t.columns);
}

}  // namespace mixroof
#endif
