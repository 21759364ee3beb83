"""FP8 scales and codes: per tensor, by blocks of 128, by blocks of 32 with E8M0 scales, and with a history of amaxes."""

import numpy as np

from bundle import Bundle, number, write_json
from rounding import E4M3, E5M2, decode, encode

LARGEST = np.float32(np.finfo(np.float32).max)


def scale_of(amax, f, previous=1.0, margin=0):
    amax = np.float32(amax)
    if amax == 0 or not np.isfinite(amax):
        return np.float32(previous)
    with np.errstate(over="ignore"):
        scale = np.float32(np.float32(f.max_finite) / amax) / np.float32(2.0**margin)
    return LARGEST if np.isinf(scale) else scale


def power_of_two(scale):
    return np.float32((np.float32(scale).view(np.uint32) & np.uint32(0x7F800000)).view(np.float32))


def codes_of(x, scale, f):
    with np.errstate(over="ignore"):
        product = (np.asarray(x, np.float32) * np.float32(scale)).astype(np.float64)
    product = np.where(np.isinf(product), np.copysign(f.max_finite, product), product)
    return encode(product, f, True).astype(np.uint8)


def dequantized(codes, scale_inv, f):
    return (decode(codes, f).astype(np.float32) * np.float32(scale_inv)).astype(np.float32)


def bits(x):
    return int(np.float32(x).view(np.uint32))


def per_tensor(bundle, rng):
    rows = []
    tensors = {
        "gauss": rng.standard_normal(37),
        "outlier": np.append(rng.standard_normal(20), 900.0),
        "minute": rng.standard_normal(9) * 1e-38,
        "zeros": np.zeros(5),
        "with_infinity": np.array([1.0, -np.inf, 3.0]),
    }
    for name, x in tensors.items():
        x = x.astype(np.float32)
        bundle.add(f"tensor/{name}/x", x, "float32")
        amax = np.float32(np.abs(x).max())
        for f in (E4M3, E5M2):
            exact = scale_of(amax, f)
            row = {
                "tensor": name,
                "format": f.name,
                "amax_bits": bits(amax),
                "amax": number(amax),
                "previous_scale": 1.0,
            }
            for mode, scale in (("exact", exact), ("power_of_two", power_of_two(exact))):
                inverse = np.float32(1) / scale
                codes = codes_of(x, scale, f)
                row[mode] = {"scale": float(scale), "scale_bits": bits(scale), "scale_inv_bits": bits(inverse)}
                bundle.add(f"tensor/{name}/{f.name}/{mode}/codes", codes, "uint8")
                bundle.add(f"tensor/{name}/{f.name}/{mode}/dequantized", dequantized(codes, inverse, f), "float32")
            rows.append(row)
    return rows


def blocks(columns, size):
    return [slice(first, min(first + size, columns)) for first in range(0, columns, size)]


def block128(bundle, rng):
    x = (rng.standard_normal((2, 150)) * 10.0 ** rng.uniform(-3, 3, (2, 150))).astype(np.float32)
    x[1, 128:] = 0
    bundle.add("block128/x", x, "float32")
    for f in (E4M3, E5M2):
        for mode in ("exact", "power_of_two"):
            scales, codes = [], np.zeros(x.shape, np.uint8)
            for row in range(len(x)):
                for block in blocks(x.shape[1], 128):
                    scale = scale_of(np.abs(x[row, block]).max(), f)
                    scale = power_of_two(scale) if mode == "power_of_two" else scale
                    scales.append(scale)
                    codes[row, block] = codes_of(x[row, block], scale, f)
            scales = np.array(scales, np.float32).reshape(len(x), -1)
            bundle.add(f"block128/{f.name}/{mode}/scale", scales, "float32")
            bundle.add(f"block128/{f.name}/{mode}/scale_inv", np.float32(1) / scales, "float32")
            bundle.add(f"block128/{f.name}/{mode}/codes", codes, "uint8")
    return {"rows": 2, "columns": 150, "block": 128, "last_block": 22}


def e8m0(amax, f, round_up):
    if amax == 0:
        return 0
    if round_up:
        ratio = np.float32(np.float32(amax) * (np.float32(1) / np.float32(f.max_finite)))
        mantissa, exponent = np.frexp(float(ratio))
        exponent -= mantissa == 0.5  # already a power of two
    else:
        exponent = np.frexp(float(amax))[1] - 1 - (8 if f is E4M3 else 15)
    return int(np.clip(exponent, -127, 127)) + 127


def mxfp8(bundle, rng):
    x = (rng.standard_normal((3, 70)) * 10.0 ** rng.uniform(-2, 2, (3, 70))).astype(np.float32)
    x[2, :32] = 0
    bundle.add("mxfp8/x", x, "float32")
    for f in (E4M3, E5M2):
        for mode in ("ocp_floor", "round_up"):
            scales, codes = [], np.zeros(x.shape, np.uint8)
            for row in range(len(x)):
                for block in blocks(x.shape[1], 32):
                    scales.append(e8m0(np.abs(x[row, block]).max(), f, mode == "round_up"))
                    codes[row, block] = encode(x[row, block].astype(np.float64) / 2.0 ** (scales[-1] - 127), f, True)
            scales = np.array(scales, np.uint8).reshape(len(x), -1)
            spread = np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, 1)[:, : x.shape[1]]
            bundle.add(f"mxfp8/{f.name}/{mode}/e8m0", scales, "uint8")
            bundle.add(f"mxfp8/{f.name}/{mode}/codes", codes, "uint8")
            bundle.add(f"mxfp8/{f.name}/{mode}/dequantized", decode(codes, f) * spread, "float64")
    return {"rows": 3, "columns": 70, "block": 32, "last_block": 6, "emax": {"fp8_e4m3": 8, "fp8_e5m2": 15}}


def delayed(f, margin, length, sizes, initial=1.0, **more):
    """The scale comes from the largest amax of the last `length` steps; one that is not finite freezes it."""
    scale, history, steps = np.float32(initial), [], []
    for size in sizes:
        x = np.array([size, -size / 2, size / 4], np.float32)
        amax = np.float32(np.nan) if np.isnan(size) else np.abs(x).max()
        used, codes = scale, codes_of(x, scale, f)
        history = ([amax] + history)[:length]
        largest = np.float32(np.nan) if any(np.isnan(a) for a in history) else max(history)
        scale = scale_of(largest, f, scale, margin)
        steps.append(
            {
                "x_bits": [bits(v) for v in x],
                "amax": number(amax),
                "scale_used": float(used),
                "codes": codes.tolist(),
                "scale_after": float(scale),
                "scale_after_bits": bits(scale),
            }
        )
    return {
        "algorithm": "max",
        "format": f.name,
        "margin": margin,
        "history_length": length,
        "initial_scale": initial,
        "steps": steps,
    } | more


def write(folder, seed):
    rng = np.random.default_rng(seed)
    bundle = Bundle(folder, "quantize")
    bundle.write(
        {"per_tensor": per_tensor(bundle, rng), "block_1x128": block128(bundle, rng), "mxfp8": mxfp8(bundle, rng)}
    )
    write_json(
        f"{folder}/delayed",
        {
            "traces": [
                delayed(E4M3, 0, 3, [2.0, 9.0, 1.0, 0.5, 0.25, 0.0]),
                delayed(E5M2, 2, 5, [0.0, 1e-40, 3.0, 7e5, 2.0, 1.0, 1.0], 4.0),
                delayed(E4M3, 0, 2, [1.0, float("inf"), 2.0, 0.5, 0.5]),
                delayed(E4M3, 0, 2, [1.0, float("nan"), 2.0, 0.5, 0.5], policy="nan_keeps_scale"),
            ]
        },
    )
