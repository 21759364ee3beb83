"""Codes, edges and single roundings."""

import numpy as np

from bundle import Bundle, number, write_json
from rounding import BF16, E4M3, E5M2, FP16, FP32, STORED, TF32, decode, encode, fp32_bits, round_to

KINDS = ["bits", "values", "midpoint", "near_midpoint", "special"]


def inputs(rng, f, count):
    """fp32 patterns: random bits, values of the format's range, midpoints of codes and their neighbours, and specials."""
    bits = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    exponents = rng.uniform(np.log2(f.min_subnormal) - 2, min(np.log2(f.max_finite) + 2, 127), count)
    values = fp32_bits(np.sign(rng.standard_normal(count)) * 2.0**exponents)
    codes = rng.integers(0, f.largest_code, count) if f is not TF32 else rng.integers(0, 254 << 10, count)
    middle = fp32_bits((decode(codes, f) + decode(codes + 1, f)) / 2)
    near = (middle.astype(np.int64) + rng.choice([-1, 1], count)).clip(0).astype(np.uint32)
    special = np.array(
        [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 1, 0x80000001, 0x7F7FFFFF], np.uint32
    )
    parts = [bits, values, middle, near, special]
    return np.concatenate(parts), np.concatenate([np.full(len(p), i, np.uint8) for i, p in enumerate(parts)])


def write_encode(folder, rng, f, count):
    bits, kind = inputs(rng, f, count)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        x = bits.view(np.float32).astype(np.float64)
    bundle = Bundle(folder, "encode_" + f.name)
    bundle.add("input_bits", bits, "uint32")
    bundle.add("kind", kind, "uint8")
    if f is TF32:
        bundle.add("expect_rne", fp32_bits(round_to(x, f)), "uint32")
    elif f.bits == 16:
        bundle.add("expect", encode(x, f), "uint16")
    else:
        bundle.add("expect_ieee", encode(x, f), "uint8")
        infinite = np.isinf(x)
        bundle.add("expect_saturating", encode(np.where(infinite, np.copysign(f.max_finite, x), x), f, True), "uint8")
    bundle.write({"format": f.name, "kinds": KINDS})


def write_decode(folder, count):
    """Codes from 0 on: all of FP8, the first `count` of fp16 and bf16."""
    bundle = Bundle(folder, "decode")
    for f in STORED.values():
        bundle.add(f.name, fp32_bits(decode(np.arange(min(1 << f.bits, count)), f)), "uint32")
    bundle.write({"what": "float32 bits of codes; index = code"})


def limits(f):
    epsilon = 2.0**-f.mantissa_bits
    row = {
        "mantissa_bits": f.mantissa_bits,
        "max_finite": f.max_finite,
        "min_normal": 2.0**f.min_exponent,
        "min_subnormal": f.min_subnormal,
        "epsilon": epsilon,
        "unit_roundoff": epsilon / 2,
        "has_infinity": f.has_infinity,
    }
    if f.name in STORED:
        quantum = 2.0 ** (np.floor(np.log2(f.max_finite)) - f.mantissa_bits)
        # The tie above the largest goes up to the even code, unless that largest code is even itself.
        over = f.max_finite + quantum / 2
        if f.largest_code % 2 == 0:
            over = float(np.nextafter(np.float32(over), np.float32(np.inf)))
        row |= {
            "max_finite_code": f.largest_code,
            "least_overflowing_fp32": over,
            "largest_rounding_to_zero": f.min_subnormal / 2,
            "nan_codes": int(np.isnan(decode(np.arange(1 << f.bits), f)).sum()),
        }
    return row


def double_rounding(rng, count):
    """Doubles just off the midpoint of two codes, where fp32 lands on it."""
    rows = []
    for f in (FP16, BF16):
        codes = rng.integers(1, f.largest_code - 1, count)
        middle = (decode(codes, f) + decode(codes + 1, f)) / 2
        for value in middle * (1 + rng.choice([-1, 1], count) * 2.0 ** rng.uniform(-50, -28, count)):
            rows.append(
                {
                    "format": f.name,
                    "f64_bits": hex(np.float64(value).view(np.uint64)),
                    "direct": int(encode(value, f)),
                    "via_fp32": int(encode(np.float32(value), f)),
                }
            )
    return rows


def absorption(rng):
    once = [
        {"format": f.name, "input": float(x), "rounded": number(round_to(x, f, f.bits == 8))}
        for f in STORED.values()
        for x in rng.standard_normal(5) * 2.0 ** rng.integers(-12, 6)
    ]
    repeated = []
    for f, weight, share in ((FP16, 2.5, -0.3), (BF16, 1.25, 0.2), (BF16, 0.75, 0.6)):
        update = np.float32(share * weight * 2.0**-f.mantissa_bits)
        low, master = float(round_to(weight, f)), np.float32(weight)
        lows, masters, copies = [], [], []
        for _ in range(9):
            low = float(round_to(np.float32(np.float32(low) + update), f))
            master = np.float32(master + update)
            lows.append(low)
            masters.append(float(master))
            copies.append(float(round_to(master, f)))
        repeated.append(
            {
                "format": f.name,
                "weight": weight,
                "update_fp32": float(update),
                "updates": 9,
                "low_only": lows,
                "master_fp32": masters,
                "copy_of_master": copies,
            }
        )
    underflow = []
    for gradient, scale in ((2e-8, 1.0), (2e-8, 512.0), (7e-9, 8192.0)):
        gradient = np.float32(gradient)
        stored = round_to(np.float32(gradient * np.float32(scale)), FP16)
        underflow.append(
            {
                "gradient": float(gradient),
                "scale": scale,
                "fp16_bits": int(encode(stored, FP16)),
                "unscaled_fp32": float(np.float32(stored) / np.float32(scale)),
            }
        )
    return {"round_once": once, "repeated_updates": repeated, "gradient_underflow_fp16": underflow}


def write(folder, seed):
    rng = np.random.default_rng(seed)
    for f in (FP16, BF16, E4M3, E5M2, TF32):
        write_encode(folder, rng, f, 90)
    write_decode(folder, 1500)
    write_json(f"{folder}/limits", {"formats": {f.name: limits(f) for f in (FP16, BF16, E4M3, E5M2, FP32, TF32)}})
    write_json(f"{folder}/double_rounding", {"cases": double_rounding(rng, 12)})
    write_json(f"{folder}/absorption", absorption(rng))
