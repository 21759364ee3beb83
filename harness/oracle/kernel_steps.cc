// To add a stored kernel: one function that makes its steps and its row in kMakers.
#include "harness/oracle/kernel_steps.h"

#include <algorithm>
#include <cmath>

#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_shape.h"
#include "kernels/bias_grad/bias_grad.h"
#include "kernels/control.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "kernels/matmul/matmul.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"

namespace mixroof {
namespace {

using Values = std::vector<double>;
using Steps = std::vector<KernelStep>;
using Positions = std::vector<std::size_t>;

constexpr Format kFp32 = Format::fp32;

/// Largest term of a norm's input and gain gradients; in a row of one column they cancel.
double norm_terms(const KernelCase& c, std::int64_t width) {
  const Values x = c.in("x"), dy = c.in("d_y"), gain = c.in("gain"), rstd = c.out("rstd");
  double largest = 0;
  for (std::size_t i = 0; i < std::min(x.size(), dy.size()); ++i) {
    const double term = std::max(std::fabs(x[i]), std::fabs(gain.at(i % static_cast<std::size_t>(width))));
    largest = std::max(largest, rstd.at(i / static_cast<std::size_t>(width)) * std::fabs(dy[i]) * term);
  }
  return largest;
}

Steps layernorm(const KernelCase& c) {
  const std::int64_t rows = c.size("rows"), width = c.size("columns");
  const double eps = c.entry.number("eps"), terms = norm_terms(c, width);
  return {
      {.kernel = &norm_kernel(),
       .problem = [=](Format io) { return norm_forward_problem(rows, width, io, io, io, eps); },
       .inputs = {c.in("x"), c.in("gain"), c.in("bias"), {}, {}, {}},
       .outputs = {{3, "out/y"}, {4, "out/mean"}, {5, "out/rstd"}}},
      {.kernel = &norm_kernel(),
       .problem = [=](Format io) { return norm_backward_problem(rows, width, io, io, io, io, io, false, false, eps); },
       .inputs = {c.in("d_y"), c.in("x"), c.in("gain"), c.out("mean"), c.out("rstd"), {}, {}, {}},
       .outputs = {{5, "out/d_x", {}, 1, terms}, {6, "out/d_gain", {}, 1, terms}, {7, "out/d_bias"}}}};
}

Steps rmsnorm(const KernelCase& c) {
  const std::int64_t rows = c.size("rows"), width = c.size("columns");
  const double eps = c.entry.number("eps");
  return {{.kernel = &norm_kernel(),
           .problem = [=](Format io) { return rms_norm_forward_problem(rows, width, io, io, io, eps); },
           .inputs = {c.in("x"), c.in("gain"), {}, {}},
           .outputs = {{2, "out/y"}, {3, "out/rstd"}}},
          {.kernel = &norm_kernel(),
           .problem =
               [=](Format io) { return rms_norm_backward_problem(rows, width, io, io, io, io, io, false, false, eps); },
           .inputs = {c.in("d_y"), c.in("x"), c.in("gain"), c.out("rstd"), {}, {}},
           .outputs = {{4, "out/d_x"}, {5, "out/d_gain"}}}};
}

Steps gelu(const KernelCase& c) {
  if (c.entry.has("form") && c.entry.text("form") != "tanh") return {};
  const std::int64_t count = c.size("count");
  return {{.kernel = &activation_kernel(),
           .problem = [=](Format io) { return gelu_problem(count, io, io); },
           .inputs = {c.in("x"), {}},
           .outputs = {{1, "out/y"}}},
          {.kernel = &activation_kernel(),
           .problem = [=](Format io) { return gelu_backward_problem(count, io, io, io); },
           .inputs = {c.in("d_y"), c.in("x"), {}},
           .outputs = {{2, "out/d_x"}}}};
}

/// Rows of [gate | up].
Values side_by_side(const Values& left, const Values& right, std::int64_t width) {
  Values both;
  for (std::size_t at = 0; at < left.size(); at += static_cast<std::size_t>(width))
    for (const Values* half : {&left, &right})
      both.insert(both.end(), half->begin() + static_cast<std::ptrdiff_t>(at),
                  half->begin() + static_cast<std::ptrdiff_t>(at) + width);
  return both;
}

/// Where the elements of [rows, width] lie in rows of `stride`, from column `column` on.
Positions in_columns(std::int64_t rows, std::int64_t width, std::int64_t stride, std::int64_t column) {
  Positions positions;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < width; ++i) positions.push_back(static_cast<std::size_t>(row * stride + column + i));
  return positions;
}

Steps swiglu(const KernelCase& c) {
  const std::int64_t rows = c.size("rows"), width = c.size("columns");
  const Values gate_up = side_by_side(c.in("gate"), c.in("up"), width);
  return {{.kernel = &activation_kernel(),
           .problem = [=](Format io) { return swiglu_problem(rows, width, io, io); },
           .inputs = {gate_up, {}},
           .outputs = {{1, "out/y"}}},
          {.kernel = &activation_kernel(),
           .problem = [=](Format io) { return swiglu_backward_problem(rows, width, io, io, io); },
           .inputs = {c.in("d_y"), gate_up, {}},
           .outputs = {{2, "out/d_gate", in_columns(rows, width, 2 * width, 0)},
                       {2, "out/d_up", in_columns(rows, width, 2 * width, width)}}}};
}

/// Where the elements of [batch, heads, seq, head_dim] lie in packed rows [batch*seq, stride], from column `column` on.
Positions packed(const std::vector<std::int64_t>& shape, std::int64_t stride, std::int64_t column) {
  Positions positions;
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t h = 0; h < shape[1]; ++h)
      for (std::int64_t t = 0; t < shape[2]; ++t)
        for (std::int64_t d = 0; d < shape[3]; ++d)
          positions.push_back(static_cast<std::size_t>((b * shape[2] + t) * stride + column + h * shape[3] + d));
  return positions;
}

void put(const Values& values, const Positions& positions, Values& into) {
  for (std::size_t i = 0; i < values.size(); ++i) into.at(positions.at(i)) = values[i];
}

/// The shape of a stored array that must be [batch, heads, seq, head_dim].
const std::vector<std::int64_t>& head_shape(const KernelCase& c, const std::string& name) {
  const std::vector<std::int64_t>& shape = c.file.shape(c.prefix + name);
  if (shape.size() != 4)
    throw UsageError(c.file.path() + ": array '" + c.prefix + name + "' is not [batch, heads, tokens, head_dim]");
  return shape;
}

Steps attention(const KernelCase& c) {
  const std::vector<std::int64_t>&q = head_shape(c, "in/q"), &k = head_shape(c, "in/k");
  const AttentionShape shape{.batch = q[0], .seq = q[2], .heads = q[1], .kv_heads = k[1], .head_dim = q[3]};
  const AttentionLayout layout(attention_forward_problem(shape, kFp32));
  const auto rows = static_cast<std::size_t>(shape.batch * shape.seq);
  const Positions queries = packed(q, layout.qkv_stride(), layout.query(0, 0)),
                  keys = packed(k, layout.qkv_stride(), layout.key(0, 0)),
                  values = packed(k, layout.qkv_stride(), layout.value(0, 0)), outs = packed(q, layout.out_stride(), 0);
  Values qkv(rows * static_cast<std::size_t>(layout.qkv_stride())),
      out(rows * static_cast<std::size_t>(layout.out_stride())), dout = out;
  put(c.in("q"), queries, qkv);
  put(c.in("k"), keys, qkv);
  put(c.in("v"), values, qkv);
  put(c.out("y"), outs, out);
  put(c.in("d_y"), outs, dout);
  return {{.kernel = &attention_kernel(),
           .problem = [=](Format io) { return attention_forward_problem(shape, io); },
           .inputs = {qkv, {}, {}},
           .outputs = {{1, "out/y", outs}, {2, "out/lse"}}},
          {.kernel = &attention_kernel(),
           .problem = [=](Format io) { return attention_backward_problem(shape, io); },
           .inputs = {qkv, out, dout, c.out("lse"), {}},
           .outputs = {{4, "out/d_q", queries}, {4, "out/d_k", keys}, {4, "out/d_v", values}}}};
}

/// The product has softmax inside attention only. One query sees all keys of its row: with q = (√n, 0, …), n a power of
/// 4, key j = (x_j, 0, …) and value j the unit vector j, the scores are x, the last output is softmax(x), and the first
/// column of the keys' gradient is that of x.
Steps softmax(const KernelCase& c) {
  const std::int64_t rows = c.size("rows"), columns = c.size("columns");
  std::int64_t head_dim = 1;
  while (head_dim < columns) head_dim *= 4;
  const AttentionShape shape{.batch = rows, .seq = columns, .heads = 1, .kv_heads = 1, .head_dim = head_dim};
  const AttentionLayout layout(attention_forward_problem(shape, kFp32));
  const Values x = c.in("x"), y = c.out("y"), dy = c.in("d_y");
  Values qkv(static_cast<std::size_t>(rows * columns * layout.qkv_stride())),
      out(static_cast<std::size_t>(rows * columns * head_dim)), dout = out;
  Values lse(static_cast<std::size_t>(rows * columns));
  Positions last_out, first_key;
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (std::int64_t row = 0; row < rows; ++row) {
    double largest = -INFINITY, sum = 0;
    for (std::int64_t j = 0; j < columns; ++j) largest = std::max(largest, x.at(at(row * columns + j)));
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::int64_t place = (row * columns + j) * layout.qkv_stride();
      const std::int64_t key = place + layout.key(0, 0);
      sum += std::exp(x[at(row * columns + j)] - largest);
      lse[at(row * columns + j)] =
          largest + std::log(sum);  // only the last query's gradient counts; the others get none
      qkv[at(place)] = std::sqrt(static_cast<double>(head_dim));
      qkv[at(key)] = x[at(row * columns + j)];
      qkv[at(place + layout.value(0, 0) + j)] = 1;
      first_key.push_back(at(key));
      last_out.push_back(at((row * columns + columns - 1) * head_dim + j));
    }
  }
  put(y, last_out, out);
  put(dy, last_out, dout);
  return {{.kernel = &attention_kernel(),
           .problem = [=](Format io) { return attention_forward_problem(shape, io); },
           .inputs = {qkv, {}, {}},
           .outputs = {{1, "out/y", last_out}}},
          {.kernel = &attention_kernel(),
           .problem = [=](Format io) { return attention_backward_problem(shape, io); },
           .inputs = {qkv, out, dout, lse, {}},
           .outputs = {{4, "out/d_x", first_key}}}};
}

Steps cross_entropy(const KernelCase& c) {
  const std::int64_t rows = c.size("rows"), vocab = c.size("vocab");
  const double effective = c.entry.number("effective");
  Values control(kControlSlots, 0.0);
  slot(control.data(), Slot::effective_tokens) = effective;
  slot(control.data(), Slot::loss_scale) = 1;
  const StepOutput loss{.operand = 3,
                        .array = "out/loss",
                        .positions = {static_cast<std::size_t>(Slot::loss_sum)},
                        .factor = effective > 0 ? 1 / effective : 1};
  return {{.kernel = &cross_entropy_kernel(),
           .problem = [=](Format io) { return cross_entropy_problem(rows, vocab, io, false); },
           .inputs = {c.in("logits"), c.in("targets"), {}, control},
           .outputs = {{0, "out/d_logits"}, {2, "out/row_loss"}, loss}}};
}

Steps embedding(const KernelCase& c) {
  const EmbeddingShape shape{.batch = c.size("batch"),
                             .seq = c.size("tokens"),
                             .vocab = c.size("vocab"),
                             .context = c.size("positions"),
                             .width = c.size("width")};
  return {{.kernel = &embedding_kernel(),
           .problem = [=](Format io) { return embedding_forward_problem(shape, io, io); },
           .inputs = {c.in("tokens"), c.in("wte"), c.in("wpe"), {}},
           .outputs = {{3, "out/y"}}},
          {.kernel = &embedding_kernel(),
           .problem = [=](Format io) { return embedding_backward_problem(shape, io, io, false, false); },
           .inputs = {c.in("d_y"), c.in("tokens"), {}, {}},
           .outputs = {{2, "out/d_wte"}, {3, "out/d_wpe"}}}};
}

/// The stored heads are the queries of packed rows whose one key/value head stays zero.
Steps rope(const KernelCase& c) {
  const std::vector<std::int64_t>& x = head_shape(c, "in/x");
  const Values positions = c.in("positions");
  const double last = positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end());
  const RopeShape shape{.batch = x[0],
                        .seq = x[2],
                        .heads = x[1],
                        .kv_heads = 1,
                        .head_dim = x[3],
                        .context = static_cast<std::int64_t>(last) + 1,
                        .packed = true};
  const double theta = c.entry.number("theta");
  const std::int64_t stride = (shape.heads + 2) * shape.head_dim;
  const Positions queries = packed(x, stride, 0);
  Values qkv(static_cast<std::size_t>(shape.batch * shape.seq * stride)), dqkv = qkv;
  put(c.in("x"), queries, qkv);
  put(c.in("d_y"), queries, dqkv);
  return {{.kernel = &rope_kernel(),
           .problem = [=](Format io) { return rope_forward_problem(shape, io, theta); },
           .inputs = {positions, qkv},
           .outputs = {{1, "out/y", queries}}},
          {.kernel = &rope_kernel(),
           .problem = [=](Format io) { return rope_backward_problem(shape, io, theta); },
           .inputs = {positions, dqkv},
           .outputs = {{1, "out/d_x", queries}}}};
}

Steps matmul(const KernelCase& c) {
  const std::int64_t rows = c.size("rows"), inner = c.size("inner"), columns = c.size("columns");
  const auto problem = [=](MatmulVariant variant, const MatmulShape& shape, bool bias) {
    return [=](Format io) { return matmul_problem(variant, shape, io, io, io, bias, io); };
  };
  return {{.kernel = &matmul_kernel(),
           .problem = problem(MatmulVariant::forward, {.m = rows, .n = columns, .k = inner}, true),
           .inputs = {c.in("x"), c.in("weight"), c.in("bias"), {}},
           .outputs = {{.operand = 3, .array = "out/y", .exact = c.entry.has("exact")}}},
          {.kernel = &matmul_kernel(),
           .problem = problem(MatmulVariant::dgrad, {.m = rows, .n = inner, .k = columns}, false),
           .inputs = {c.in("d_y"), c.in("weight"), {}},
           .outputs = {{2, "out/d_x"}}},
          {.kernel = &matmul_kernel(),
           .problem = problem(MatmulVariant::wgrad, {.m = columns, .n = inner, .k = rows}, false),
           .inputs = {c.in("d_y"), c.in("x"), {}},
           .outputs = {{2, "out/d_weight"}}},
          {.kernel = &bias_grad_kernel(),
           .problem = [=](Format io) { return bias_grad_problem(rows, columns, io, io, false); },
           .inputs = {c.in("d_y"), {}},
           .outputs = {{1, "out/d_bias"}}}};
}

struct Maker {
  std::string_view kernel;
  Steps (*make)(const KernelCase& c);
};
constexpr Maker kMakers[] = {
    {"layernorm", layernorm}, {"rmsnorm", rmsnorm}, {"gelu", gelu},
    {"swiglu", swiglu},       {"softmax", softmax}, {"attention", attention},
    {"rope", rope},           {"matmul", matmul},   {"cross_entropy", cross_entropy},
    {"embedding", embedding},
};

}  // namespace

std::vector<KernelStep> kernel_steps(const std::string& kernel, const KernelCase& c) {
  for (const Maker& maker : kMakers)
    if (maker.kernel == kernel) return maker.make(c);
  return {};
}

}  // namespace mixroof
