// Encoding and decoding of every format: round to nearest, ties to even, subnormals kept, NaN stays NaN for every
// payload (a quiet NaN of the same sign). Scalar functions are exact integer arithmetic and the definition; the array
// functions give the same bits by the best instructions of this processor (F16C, AVX-512, AVX512_BF16 only where they
// round the same way and keep subnormals).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/numeric/format.h"

namespace mixroof {

/// What a finite overflow or an infinity becomes. fp16, bf16: `ieee` gives infinity. FP8: quantizing tensors saturates to
/// the largest finite value of the sign (OCP OFP8 saturating mode); `ieee` gives infinity in e5m2 and NaN in e4m3.
enum class Overflow : std::uint8_t { ieee, saturate };

std::uint16_t encode_fp16(float value);
std::uint16_t encode_bf16(float value);
std::uint8_t encode_fp8_e4m3(float value, Overflow overflow = Overflow::saturate);
std::uint8_t encode_fp8_e5m2(float value, Overflow overflow = Overflow::saturate);
/// The power of two at or above |value|, 2^(code - 127); 0 gives the least one. Above 2^127, infinite or NaN: the NaN code
/// 255. Rounding up makes a scale under which nothing saturates.
std::uint8_t encode_e8m0(float value);
float round_tf32(float value);  // 10 mantissa bits, ties to even, as an fp32 value

float decode_fp16(std::uint16_t code);
float decode_bf16(std::uint16_t code);
float decode_fp8_e4m3(std::uint8_t code);
float decode_fp8_e5m2(std::uint8_t code);
float decode_e8m0(std::uint8_t code);

/// The value of `format` nearest to a double, rounded once (never through fp32), as a double. FP8 saturates, e8m0 rounds
/// up.
double round_to(Format format, double value);

/// fp32 array to codes of `to`. fp32 copies; tf32 writes rounded fp32; FP8 saturates; fp64 widens; int32 converts
/// (values are whole numbers). `out` holds count * bytes_of(to) bytes and may be unaligned, as may `in`; the two must not
/// overlap unless they are the same fp32 or tf32 array.
void encode(Format to, const float* in, void* out, std::int64_t count);
/// Codes of `from` to fp32, exact for every format but fp64 (rounded) and int32 beyond 2^24.
void decode(Format from, const void* in, float* out, std::int64_t count);

/// The same with doubles: encode rounds once, decode is exact.
void encode(Format to, const double* in, void* out, std::int64_t count);
void decode(Format from, const void* in, double* out, std::int64_t count);

/// Names of the array paths that this processor can run, best first ("avx512", "avx2", "scalar"), and a test hook
/// that forces one of them for the process (empty: choose the best again).
std::vector<std::string> codec_paths();
void force_codec_path(const std::string& path);
/// The path that encode and decode take now for a format.
std::string codec_path(Format format);

}  // namespace mixroof
