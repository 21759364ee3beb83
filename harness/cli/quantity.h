// Numbers as people read and type them. Neither direction depends on the locale.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mixroof::cli {

/// Three or four significant digits with an SI prefix: si_text(2.01e11, "FLOP/s") is "201 GFLOP/s", si_text(1.5e-6,
/// "s") "1.5 us". NaN gives "-": unknown is never shown as a number.
std::string si_text(double value, std::string_view unit);
inline std::string time_text(double seconds) { return si_text(seconds, "s"); }
inline std::string flop_rate_text(double flop_per_s) { return si_text(flop_per_s, "FLOP/s"); }
inline std::string byte_rate_text(double byte_per_s) { return si_text(byte_per_s, "B/s"); }

/// "1.854 GiB", "512 KiB", "17 B": powers of 1024, for text only.
std::string bytes_text(std::int64_t bytes);
/// "12.3 %" of a fraction, "-" for NaN.
std::string percent_text(double fraction);

/// Bytes from "24GiB", "24 GB", "1.5e9", "4096" (B, kB, MB, GB, TB; KiB, MiB, GiB, TiB; letters of either case). Throws
/// UsageError naming `option`.
std::int64_t parse_bytes(std::string_view text, std::string_view option);
/// Seconds from "120", "120s", "500ms", "2m", "1h", not negative. Throws UsageError naming `option`.
double parse_duration_s(std::string_view text, std::string_view option);
/// A finite number; the whole text has to be one. Throws UsageError naming `option`.
double parse_number(std::string_view text, std::string_view option);

}  // namespace mixroof::cli
