"""Number formats by their definition: a value is rounded to a multiple of its binade's quantum, ties to even."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Format:
    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max_finite: float
    has_infinity: bool

    @property
    def min_exponent(self):
        return 1 - self.bias

    @property
    def min_subnormal(self):
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    @property
    def bits(self):
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def largest_code(self):
        return int(code_of(np.array([self.max_finite]), self)[0])


FP16 = Format("fp16", 5, 10, 15, 65504.0, True)
BF16 = Format("bf16", 8, 7, 127, float(2.0**127 * (2 - 2.0**-7)), True)
E4M3 = Format("fp8_e4m3", 4, 3, 7, 448.0, False)
E5M2 = Format("fp8_e5m2", 5, 2, 15, 57344.0, True)
TF32 = Format("tf32", 8, 10, 127, float(2.0**127 * (2 - 2.0**-10)), True)
FP32 = Format("fp32", 8, 23, 127, float(2.0**127 * (2 - 2.0**-23)), True)
STORED = {f.name: f for f in (FP16, BF16, E4M3, E5M2)}


def round_to(x, f, saturate=False):
    """Nearest values of the format as float64; overflow is infinite (NaN without infinities) or the largest finite value."""
    x = np.asarray(x, np.float64)
    _, exponent = np.frexp(np.where(np.isfinite(x), x, 0))
    quantum = np.ldexp(1.0, np.maximum(exponent - 1, f.min_exponent) - f.mantissa_bits)
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = np.where(np.isfinite(x), np.rint(x / quantum) * quantum, x)
        over = np.abs(rounded) > f.max_finite
    beyond = f.max_finite if saturate else np.inf if f.has_infinity else np.nan
    return np.where(over, np.copysign(beyond, x), rounded)


def code_of(value, f):
    """Codes of values that the format has; NaN becomes a NaN code."""
    value = np.asarray(value, np.float64)
    sign = np.signbit(value).astype(np.int64) << (f.bits - 1)
    finite = np.where(np.isfinite(value), np.abs(value), 0)
    _, exponent = np.frexp(finite)
    field = np.maximum(exponent - 1, f.min_exponent)
    units = np.ldexp(finite, f.mantissa_bits - field).astype(np.int64)  # of the quantum, with the hidden bit
    normal = units >= 1 << f.mantissa_bits
    code = np.where(normal, ((field + f.bias) << f.mantissa_bits) + units - (1 << f.mantissa_bits), units)
    top = (1 << f.exponent_bits) - 1 << f.mantissa_bits
    code = np.where(np.isinf(value), top, code)
    code = np.where(np.isnan(value), top | ((1 << f.mantissa_bits) - 1), code)
    return sign | code


def encode(x, f, saturate=False):
    return code_of(round_to(x, f, saturate), f)


def decode(code, f):
    code = np.asarray(code, np.int64)
    mantissa = code & ((1 << f.mantissa_bits) - 1)
    field = code >> f.mantissa_bits & ((1 << f.exponent_bits) - 1)
    value = np.where(
        field == 0,
        np.ldexp(mantissa.astype(np.float64), f.min_exponent - f.mantissa_bits),
        np.ldexp(1.0 + mantissa / 2.0**f.mantissa_bits, np.maximum(field, 1) - f.bias),
    )
    top = field == (1 << f.exponent_bits) - 1
    if f.has_infinity:
        value = np.where(top, np.where(mantissa == 0, np.inf, np.nan), value)
    else:
        value = np.where(top & (mantissa == (1 << f.mantissa_bits) - 1), np.nan, value)
    return np.where(code >> (f.bits - 1) & 1, -value, value)


def fp32_bits(x):
    return np.asarray(x, np.float32).view(np.uint32)
