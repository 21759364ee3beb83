// Attention on the CPU: panels of one head as fp32 in workspace, scores in tiles of 64 queries by 64 keys, products in
// registers (strip_product-inl.h) that skip what lies above the diagonal and, packed, before the documents. Every output element has one owner and a
// fixed order of sums, so results repeat bit for bit with any number of workers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
#include "kernels/attention/strip_product-inl.h"
#include "kernels/vector-inl.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "harness/backend/cpu/parallel.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_shape.h"
#include "kernels/implementation.h"
#include "kernels/row_buffer.h"

HWY_BEFORE_NAMESPACE();
namespace mixroof {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kTile = kAttentionTile;

/// e^x for x ≤ 0 or slightly above; a NaN stays one (Highway's own returns 0).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of_score(D d, V x) {
  const V p = hn::Exp(d, hn::Max(x, hn::Set(d, -105.0f)));
  return hn::IfThenElse(hn::IsNaN(x), x, p);
}

/// Rounds a strip of a tile to `io`, where a product takes it in that format. Whole rows at once: what lies past the
/// visible keys is never read.
HWY_INLINE void round_strip(Format io, float* strip, std::int64_t rows) {
  if (io == Format::fp32) return;
  std::uint16_t codes[kStripRows * kTile];
  encode(io, strip, codes, rows * kTile);
  decode(io, codes, strip, rows * kTile);
}

HWY_INLINE std::int64_t whole_vectors(std::int64_t n) { return AttentionPanels::padded(n); }
HWY_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Keys of a tile that one query sees: [begin, end), possibly none.
struct SeenKeys {
  std::int64_t begin, end;
};

/// Lanes of the vector at key j that are seen.
template <class D>
HWY_INLINE hn::Mask<D> seen_lanes(D d, std::int64_t j, SeenKeys seen) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto before = [=](std::int64_t key) {
    return hn::FirstN(d, static_cast<std::size_t>(key > j ? smaller(key - j, lanes) : 0));
  };
  return hn::AndNot(before(seen.begin), before(seen.end));
}

/// Columns [begin, end) of a strip's scores, whole vectors.
struct Columns {
  std::int64_t begin, end;
};

/// scores[rows, columns] = left[rows]·rightᵀ for one strip.
struct TileScores {
  std::int64_t head_dim, width, seq;  // width and seq padded
  HWY_INLINE void strip(const float* left, std::int64_t rows, const float* right_t, Columns columns,
                        float* scores) const {
    strip_product(rows, {left, width, 1}, {right_t + columns.begin, seq}, head_dim, {scores + columns.begin, kTile},
                  columns.end - columns.begin, false);
  }
};

/// Exponentials of one row in place: keys that are seen count, the other columns become zero. Updates the running maximum
/// and sum; returns the factor that earlier sums and outputs must take.
HWY_INLINE float softmax_row(float* scores, SeenKeys seen, Columns columns, float scale, float* maximum, float* sum) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  auto largest = hn::Set(d, minus_infinity);
  for (std::int64_t j = columns.begin; j < seen.end; j += lanes) {
    const auto counts = seen_lanes(d, j, seen);
    largest = hn::Max(largest, hn::IfThenElse(counts, hn::LoadU(d, scores + j), hn::Set(d, minus_infinity)));
  }
  const float row_maximum = hn::GetLane(hn::MaxOfLanes(d, largest)) * scale;
  const float before = *maximum;
  if (row_maximum > before) *maximum = row_maximum;
  auto total = hn::Zero(d);
  for (std::int64_t j = columns.begin; j < columns.end; j += lanes) {
    const auto p = exp_of_score(d, hn::MulSub(hn::LoadU(d, scores + j), hn::Set(d, scale), hn::Set(d, *maximum)));
    const auto kept = hn::IfThenElseZero(seen_lanes(d, j, seen), p);
    total = hn::Add(total, kept);
    hn::StoreU(kept, d, scores + j);
  }
  const float factor = *maximum == before ? 1.0f : std::exp(before - *maximum);
  *sum = *sum * factor + hn::GetLane(hn::SumOfLanes(d, total));
  return factor;
}

HWY_INLINE void scale_row(float* row, std::int64_t n, float factor) {
  for_each_vector(n, [=](auto d, std::int64_t i)
                         HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, factor)), d, row + i); });
}

/// Keys of a tile that starts at `key` which query `query` sees, counted from `key`.
HWY_INLINE SeenKeys seen_keys(const std::int32_t* first_keys, std::int64_t query, std::int64_t key, std::int64_t keys) {
  const std::int64_t hidden = first_keys ? first_keys[query] - key : 0;
  return {hidden > 0 ? hidden : 0, smaller(query - key + 1, keys)};
}

/// Keys that any of `rows` queries from `first` on sees: documents follow each other, so the first sees the earliest.
HWY_INLINE SeenKeys seen_by_strip(const std::int32_t* first_keys, std::int64_t first, std::int64_t rows,
                                  std::int64_t key, std::int64_t keys) {
  return {seen_keys(first_keys, first, key, keys).begin, seen_keys(first_keys, first + rows - 1, key, keys).end};
}

/// Whole vectors around the keys of a strip.
HWY_INLINE Columns columns_of(SeenKeys seen) { return {seen.begin / 16 * 16, whole_vectors(seen.end)}; }

/// One tile of keys for a tile of queries: scores, online softmax (arXiv 1805.02867), outputs so far.
HWY_INLINE void forward_keys(const AttentionForwardTile& t, const TileScores& products, float scale, Format io,
                             std::int64_t key, std::int64_t keys) {
  for_strips(t.count, [&](std::int64_t row, std::int64_t rows) HWY_ATTR {
    const SeenKeys seen = seen_by_strip(t.first_keys, t.first + row, rows, key, keys);
    if (seen.begin >= seen.end) return;
    const Columns columns = columns_of(seen);
    float* scores = t.scores + row * kTile;
    products.strip(t.queries + row * products.width, rows, t.keys_t + key, columns, scores);
    float* outputs = t.outputs + row * products.width;
    for (std::int64_t r = 0; r < rows; ++r) {
      float* line = scores + r * kTile;
      const float factor = softmax_row(line, seen_keys(t.first_keys, t.first + row + r, key, keys), columns, scale,
                                       t.maxima + row + r, t.sums + row + r);
      if (factor != 1.0f) scale_row(outputs + r * products.width, products.width, factor);
    }
    round_strip(io, scores, rows);
    strip_product(rows, {scores + seen.begin, kTile, 1},
                  {t.values + (key + seen.begin) * products.width, products.width}, seen.end - seen.begin,
                  {outputs, products.width}, products.width, true);
  });
}

/// outputs = softmax(queries·keysᵀ·scale)·values; maxima and sums give the log-sum-exp.
void forward_tile(const AttentionForwardTile& t, std::int64_t head_dim, std::int64_t width, std::int64_t seq,
                  float scale, Format io) {
  const TileScores products{head_dim, width, seq};
  std::memset(t.outputs, 0, static_cast<std::size_t>(t.count * width) * sizeof(float));
  for (std::int64_t i = 0; i < t.count; ++i) {
    t.maxima[i] = -std::numeric_limits<float>::infinity();
    t.sums[i] = 0;
  }
  const std::int64_t end = t.first + t.count;
  const std::int64_t begin = t.first_keys ? t.first_keys[t.first] / kTile * kTile : 0;
  for (std::int64_t key = begin; key < end; key += kTile)
    forward_keys(t, products, scale, io, key, smaller(kTile, end - key));
  for (std::int64_t i = 0; i < t.count; ++i) scale_row(t.outputs + i * width, width, 1 / t.sums[i]);
}

/// P and dS of one row from the raw scores in `p` and dout·v in `ds`; zero in the columns whose keys are not seen and in
/// those before.
HWY_INLINE void gradient_row(float* p, float* ds, SeenKeys seen, Columns columns, float scale, float lse, float delta) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t j = 0; j < columns.begin; j += lanes) {
    hn::StoreU(hn::Zero(d), d, p + j);
    hn::StoreU(hn::Zero(d), d, ds + j);
  }
  for (std::int64_t j = columns.begin; j < columns.end; j += lanes) {
    const auto counts = seen_lanes(d, j, seen);
    const auto e = exp_of_score(d, hn::MulSub(hn::LoadU(d, p + j), hn::Set(d, scale), hn::Set(d, lse)));
    const auto g = hn::Mul(e, hn::Sub(hn::LoadU(d, ds + j), hn::Set(d, delta)));
    hn::StoreU(hn::IfThenElseZero(counts, e), d, p + j);
    hn::StoreU(hn::IfThenElseZero(counts, g), d, ds + j);
  }
}

struct TileRange {
  std::int64_t query, queries, key, keys;
};

/// P and dS of a tile, and its share of dq. Strips that see no key of the tile are left out.
HWY_INLINE void gradient_queries(const AttentionBackwardPanels& b, const TileScores& products, TileRange t,
                                 const float* lse, float scale, Format io) {
  for_strips(t.queries, [&](std::int64_t row, std::int64_t rows) HWY_ATTR {
    const std::int64_t first = t.query + row;
    const SeenKeys seen = seen_by_strip(b.first_keys, first, rows, t.key, t.keys);
    if (seen.begin >= seen.end) return;
    const Columns columns = columns_of(seen);
    float *p = b.p + row * kTile, *ds = b.ds + row * kTile;
    products.strip(b.queries + first * products.width, rows, b.keys_t + t.key, columns, p);
    products.strip(b.douts + first * products.width, rows, b.values_t + t.key, columns, ds);
    for (std::int64_t r = 0; r < rows; ++r) {
      gradient_row(p + r * kTile, ds + r * kTile, seen_keys(b.first_keys, first + r, t.key, t.keys), columns, scale,
                   lse[first + r], b.deltas[first + r]);
    }
    round_strip(io, p, rows);
    round_strip(io, ds, rows);
    strip_product(rows, {ds + seen.begin, kTile, 1},
                  {b.keys + (t.key + seen.begin) * products.width, products.width}, seen.end - seen.begin,
                  {b.dqueries + first * products.width, products.width}, products.width, true);
  });
}

/// A tile's share of dk and dv.
HWY_INLINE void gradient_keys(const AttentionBackwardPanels& b, std::int64_t width, TileRange t) {
  for_strips(t.keys, [&](std::int64_t row, std::int64_t rows) HWY_ATTR {
    // Queries before a key do not see it, nor do those of later documents; the strip's first key has the most of the one
    // kind, its last the fewest of the other.
    const std::int64_t skipped = t.key + row > t.query ? t.key + row - t.query : 0;
    const std::int64_t first = t.query + skipped, corner = skipped * kTile + row;
    std::int64_t count = t.queries - skipped;
    while (b.first_keys && count > 0 && b.first_keys[first + count - 1] >= t.key + row + rows) --count;
    if (count <= 0) return;
    strip_product(rows, {b.p + corner, 1, kTile}, {b.douts + first * width, width}, count,
                  {b.dvalues + (t.key + row) * width, width}, width, true);
    strip_product(rows, {b.ds + corner, 1, kTile}, {b.queries + first * width, width}, count,
                  {b.dkeys + (t.key + row) * width, width}, width, true);
  });
}

/// Adds one query head to dqueries, dkeys and dvalues (all but the scale of dq and dk).
void backward_head(const AttentionBackwardPanels& b, std::int64_t positions, std::int64_t head_dim, std::int64_t width,
                   std::int64_t seq, const float* lse, float scale, Format io) {
  const TileScores products{head_dim, width, seq};
  for (std::int64_t key = 0; key < positions; key += kTile)
    for (std::int64_t query = key; query < positions; query += kTile) {
      // Nor do later queries see a tile of keys that lies before this one's document.
      if (b.first_keys && b.first_keys[query] >= key + kTile) break;
      const TileRange range{query, smaller(kTile, positions - query), key, smaller(kTile, positions - key)};
      gradient_queries(b, products, range, lse, scale, io);
      gradient_keys(b, width, range);
    }
}

/// Σ a·b over whole vectors.
float dot_row(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::int64_t n) {
  const hn::ScalableTag<float> d;
  auto sum = hn::Zero(d);
  for (std::int64_t i = 0; i < n; i += static_cast<std::int64_t>(hn::Lanes(d)))
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void scale_values(float* values, std::int64_t n, float factor) { scale_row(values, n, factor); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mixroof
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mixroof {
namespace {

HWY_EXPORT(target_name);
HWY_EXPORT(forward_tile);
HWY_EXPORT(backward_head);
HWY_EXPORT(dot_row);
HWY_EXPORT(scale_values);

/// to[column, row] = from[row, column]; from is [rows, columns], `stride` that of `to`, both counts multiples of 16.
void transpose(const float* from, std::int64_t rows, std::int64_t columns, float* to, std::int64_t stride) {
  constexpr std::int64_t kBlock = 16;  // rows of a block fill one cache line of `to`
  for (std::int64_t r = 0; r < rows; r += kBlock)
    for (std::int64_t c = 0; c < columns; ++c)
      for (std::int64_t i = 0; i < kBlock; ++i) to[c * stride + r + i] = from[(r + i) * columns + c];
}

/// Hands out a worker's workspace piece by piece.
class PanelCursor {
 public:
  PanelCursor(void* workspace, int worker, std::int64_t floats)
      : at_(static_cast<float*>(workspace) + worker * floats) {}
  float* take(std::int64_t floats) {
    float* panel = at_;
    at_ += floats;
    return panel;
  }

 private:
  float* at_;
};

class AttentionPlan : public Plan {
 public:
  AttentionPlan(const Problem& problem, const DeviceFacts& facts)
      : layout_(problem),
        at_(problem),
        panels_(layout_),
        io_(problem.formats[0]),
        scale_(static_cast<float>(1 / std::sqrt(static_cast<double>(layout_.head_dim)))),
        emulated_(is_16_bit(io_) && !facts.has_arithmetic(io_)) {}

  std::string implementation() const override { return std::string("mixroof ") + HWY_DYNAMIC_DISPATCH(target_name)(); }
  bool emulated() const override { return emulated_; }

 protected:
  /// Rows of a head, `stride` elements apart from element `first` on, into a panel; columns past head_dim are zero.
  void gather(const void* tensor, std::int64_t first, std::int64_t stride, std::int64_t rows, float* panel) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      float* to = panel + row * panels_.width;
      decode(io_, element_address(io_, tensor, first + row * stride), to, layout_.head_dim);
      std::fill(to + layout_.head_dim, to + panels_.width, 0.0f);
    }
  }

  /// The transpose of a head, [width, seq]; positions past seq are zero. `rows` is scratch for a tile of rows.
  void gather_transposed(const void* tensor, std::int64_t first, std::int64_t stride, float* rows, float* panel) const {
    for (std::int64_t at = 0; at < panels_.seq; at += kAttentionTile) {
      const std::int64_t count = std::clamp<std::int64_t>(layout_.seq - at, 0, kAttentionTile);
      const std::int64_t padded = std::min(kAttentionTile, panels_.seq - at);
      gather(tensor, first + at * stride, stride, count, rows);
      std::fill(rows + count * panels_.width, rows + padded * panels_.width, 0.0f);
      transpose(rows, padded, panels_.width, panel + at, panels_.seq);
    }
  }

  /// A panel's rows, times `factor`, rounded once into a head of a tensor.
  void scatter(float* panel, std::int64_t rows, float factor, void* tensor, std::int64_t first,
               std::int64_t stride) const {
    if (factor != 1.0f) HWY_DYNAMIC_DISPATCH(scale_values)(panel, rows * panels_.width, factor);
    for (std::int64_t row = 0; row < rows; ++row)
      encode(io_, panel + row * panels_.width, element_address(io_, tensor, first + row * stride), layout_.head_dim);
  }

  /// first_key of the positions of a row; null when not packed.
  const std::int32_t* first_keys(const Launch& launch, std::int64_t b) const {
    if (!layout_.packed) return nullptr;
    return static_cast<const std::int32_t*>(launch.operands[at_.first_key]) + b * layout_.seq;
  }

  AttentionLayout layout_;
  AttentionOperands at_;
  AttentionPanels panels_;
  Format io_;
  float scale_;
  bool emulated_;
};

class ForwardPlan final : public AttentionPlan {
 public:
  using AttentionPlan::AttentionPlan;

  void run(const Launch& launch) const override {
    const std::int64_t items = layout_.batch * layout_.heads * tiles();
    parallel_ranges(items, 1,
                    [&](int worker, std::int64_t begin, std::int64_t end) { run_items(launch, worker, begin, end); });
  }

 private:
  std::int64_t tiles() const { return (layout_.seq + kAttentionTile - 1) / kAttentionTile; }

  /// Items are tiles of queries, heads outermost. Within a head long and short rows alternate, so that a range of items
  /// is about as much work as any other of its length.
  void run_items(const Launch& launch, int worker, std::int64_t begin, std::int64_t end) const {
    PanelCursor cursor(launch.workspace, worker, panels_.forward_floats());
    float *keys_t = cursor.take(panels_.whole()), *values = cursor.take(panels_.whole());
    float *queries = cursor.take(panels_.rows()), *outputs = cursor.take(panels_.rows());
    float* scores = cursor.take(AttentionPanels::tile());
    float *maxima = cursor.take(kAttentionTile), *sums = cursor.take(kAttentionTile);
    AttentionForwardTile tile{keys_t, values, queries, outputs, scores, maxima, sums, nullptr, 0, 0};
    std::int64_t packed = -1;
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t head_number = item / tiles(), place = item % tiles();
      const std::int64_t b = head_number / layout_.heads, head = head_number % layout_.heads;
      const std::int64_t kv_head = head / layout_.group(), pair = b * layout_.kv_heads + kv_head;
      if (pair != packed) {
        const void* qkv = launch.operands[at_.qkv];
        gather_transposed(qkv, layout_.key(b, kv_head), layout_.qkv_stride(), queries, keys_t);
        gather(qkv, layout_.value(b, kv_head), layout_.qkv_stride(), layout_.seq, values);
        packed = pair;
      }
      tile.first_keys = first_keys(launch, b);
      tile.first = (place % 2 == 0 ? place / 2 : tiles() - 1 - place / 2) * kAttentionTile;
      tile.count = std::min(kAttentionTile, layout_.seq - tile.first);
      run_tile(launch, tile, queries, b, head);
    }
  }

  void run_tile(const Launch& launch, const AttentionForwardTile& tile, float* queries, std::int64_t b,
                std::int64_t head) const {
    gather(launch.operands[at_.qkv], layout_.query(b, head) + tile.first * layout_.qkv_stride(), layout_.qkv_stride(),
           tile.count, queries);
    HWY_DYNAMIC_DISPATCH(forward_tile)(tile, layout_.head_dim, panels_.width, panels_.seq, scale_, io_);
    scatter(tile.outputs, tile.count, 1.0f, launch.operands[at_.out],
            layout_.out(b, head) + tile.first * layout_.out_stride(), layout_.out_stride());
    float* lse = static_cast<float*>(launch.operands[at_.lse]) + layout_.lse(b, head) + tile.first;
    for (std::int64_t i = 0; i < tile.count; ++i)
      lse[i] = static_cast<float>(static_cast<double>(tile.maxima[i]) + std::log(static_cast<double>(tile.sums[i])));
  }
};

class BackwardPlan final : public AttentionPlan {
 public:
  using AttentionPlan::AttentionPlan;

  void run(const Launch& launch) const override {
    parallel_ranges(layout_.batch * layout_.kv_heads, 1, [&](int worker, std::int64_t begin, std::int64_t end) {
      AttentionBackwardPanels panels = take_panels(launch, worker);
      for (std::int64_t pair = begin; pair < end; ++pair) {
        panels.first_keys = first_keys(launch, pair / layout_.kv_heads);
        run_pair(launch, panels, pair / layout_.kv_heads, pair % layout_.kv_heads);
      }
    });
  }

 private:
  AttentionBackwardPanels take_panels(const Launch& launch, int worker) const {
    PanelCursor cursor(launch.workspace, worker, panels_.backward_floats());
    AttentionBackwardPanels p{};
    for (float** panel : {&p.keys, &p.keys_t, &p.values_t, &p.dkeys, &p.dvalues, &p.queries, &p.douts, &p.dqueries})
      *panel = cursor.take(panels_.whole());
    p.deltas = cursor.take(panels_.seq);
    p.p = cursor.take(AttentionPanels::tile());
    p.ds = cursor.take(AttentionPanels::tile());
    p.rows = cursor.take(panels_.rows());
    return p;
  }

  /// One key/value head with every query head that reads it: the only writer of their dq, dk and dv.
  void run_pair(const Launch& launch, const AttentionBackwardPanels& p, std::int64_t b, std::int64_t kv_head) const {
    const void* qkv = launch.operands[at_.qkv];
    void* dqkv = launch.operands[at_.dqkv];
    const std::int64_t stride = layout_.qkv_stride();
    gather(qkv, layout_.key(b, kv_head), stride, layout_.seq, p.keys);
    gather_transposed(qkv, layout_.key(b, kv_head), stride, p.rows, p.keys_t);
    gather_transposed(qkv, layout_.value(b, kv_head), stride, p.rows, p.values_t);
    std::fill_n(p.dkeys, panels_.whole(), 0.0f);
    std::fill_n(p.dvalues, panels_.whole(), 0.0f);
    for (std::int64_t head = kv_head * layout_.group(); head < (kv_head + 1) * layout_.group(); ++head) {
      load_query_head(launch, p, b, head);
      const float* lse = static_cast<const float*>(launch.operands[at_.lse]) + layout_.lse(b, head);
      HWY_DYNAMIC_DISPATCH(backward_head)
      (p, layout_.seq, layout_.head_dim, panels_.width, panels_.seq, lse, scale_, io_);
      scatter(p.dqueries, layout_.seq, scale_, dqkv, layout_.query(b, head), stride);
    }
    scatter(p.dkeys, layout_.seq, scale_, dqkv, layout_.key(b, kv_head), stride);
    scatter(p.dvalues, layout_.seq, 1.0f, dqkv, layout_.value(b, kv_head), stride);
  }

  void load_query_head(const Launch& launch, const AttentionBackwardPanels& p, std::int64_t b,
                       std::int64_t head) const {
    gather(launch.operands[at_.qkv], layout_.query(b, head), layout_.qkv_stride(), layout_.seq, p.queries);
    gather(launch.operands[at_.dout], layout_.out(b, head), layout_.out_stride(), layout_.seq, p.douts);
    std::fill_n(p.dqueries, panels_.whole(), 0.0f);
    for (std::int64_t i = 0; i < layout_.seq; ++i) {
      gather(launch.operands[at_.out], layout_.out(b, head) + i * layout_.out_stride(), layout_.out_stride(), 1, p.rows);
      p.deltas[i] = HWY_DYNAMIC_DISPATCH(dot_row)(p.rows, p.douts + i * panels_.width, panels_.width);
    }
  }
};

std::unique_ptr<Plan> prepare(const Problem& problem, const PrepareContext& context) {
  if (problem.variant == "backward") return std::make_unique<BackwardPlan>(problem, context.facts);
  return std::make_unique<ForwardPlan>(problem, context.facts);
}

constexpr Implementation kImplementations[] = {{"attention", "cpu", "mixroof", supports_all, prepare}};

}  // namespace

std::span<const Implementation> attention_cpu() { return kImplementations; }

}  // namespace mixroof
#endif
