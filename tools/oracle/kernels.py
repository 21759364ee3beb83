"""Single kernels, forward and backward, in float64."""

import numpy as np

import ops
from bundle import Bundle


def exact(rng, *shape, size=1.0):
    """Inputs that fp32, bf16 and fp16 hold exactly: eight bits."""
    return rng.integers(-160, 161, shape) / 64 * size


def layernorm(rng, rms, rows, columns, size=1.0):
    x, gain, bias, dy = (
        exact(rng, rows, columns, size=size),
        exact(rng, columns),
        exact(rng, columns),
        exact(rng, rows, columns),
    )
    eps = 1e-6
    y, cache = ops.norm(x, gain, None if rms else bias, eps, rms)
    dx, dgain, dbias = ops.norm_backward(dy, cache)
    inputs, outputs = {"x": x, "gain": gain, "d_y": dy}, {"y": y, "rstd": cache.rstd[:, 0], "d_x": dx, "d_gain": dgain}
    if not rms:
        inputs["bias"] = bias
        outputs |= {"mean": cache.mean[:, 0], "d_bias": dbias}
    return {"rows": rows, "columns": columns, "eps": eps}, inputs, outputs


def gelu(rng, count, size):
    x, dy = exact(rng, count, size=size), exact(rng, count)
    return {"form": "tanh", "count": count}, {"x": x, "d_y": dy}, {"y": ops.gelu(x), "d_x": ops.gelu_backward(dy, x)}


def swiglu(rng, rows, columns):
    gate, up, dy = (exact(rng, rows, columns) for _ in range(3))
    dgate, dup = ops.swiglu_backward(dy, gate, up)
    return (
        {"rows": rows, "columns": columns},
        {"gate": gate, "up": up, "d_y": dy},
        {"y": ops.swiglu(gate, up), "d_gate": dgate, "d_up": dup},
    )


def softmax(rng, rows, columns):
    x, dy = exact(rng, rows, columns, size=2.0), exact(rng, rows, columns)
    y = ops.softmax(x)
    return (
        {"rows": rows, "columns": columns},
        {"x": x, "d_y": dy},
        {"y": y, "d_x": y * (dy - (dy * y).sum(-1, keepdims=True))},
    )


def attention(rng, batch, heads, kv_heads, tokens, head_dim):
    q, k, v = (exact(rng, batch, h, tokens, head_dim) for h in (heads, kv_heads, kv_heads))
    dy = exact(rng, batch, heads, tokens, head_dim)
    y, cache = ops.attention(q, k, v, np.tri(tokens, dtype=bool)[None])
    dq, dk, dv = ops.attention_backward(dy, cache)
    return (
        {"batch": batch, "heads": heads, "kv_heads": kv_heads, "tokens": tokens, "head_dim": head_dim, "causal": True},
        {"q": q, "k": k, "v": v, "d_y": dy},
        {"y": y, "lse": cache.lse, "d_q": dq, "d_k": dk, "d_v": dv},
    )


def cross_entropy(rng, rows, vocab, masked):
    logits, targets = exact(rng, rows, vocab, size=1.5), rng.integers(0, vocab, rows).astype(np.int32)
    targets[rng.permutation(rows)[:masked]] = -1
    effective = rows - masked
    losses, dlogits = ops.cross_entropy(logits, targets)
    divisor = max(effective, 1)
    return (
        {"rows": rows, "vocab": vocab, "effective": effective},
        {"logits": logits, "targets": targets},
        {"row_loss": losses, "loss": losses.sum() / divisor, "d_logits": dlogits / divisor},
    )


def embedding(rng, batch, tokens, vocab, width, positions):
    ids = rng.integers(0, vocab, (batch, tokens)).astype(np.int32)
    ids[:, -1] = ids[:, 0]
    wte, wpe, dy = exact(rng, vocab, width), exact(rng, positions, width), exact(rng, batch, tokens, width)
    dwte, dwpe = np.zeros_like(wte), np.zeros_like(wpe)
    np.add.at(dwte, ids, dy)
    dwpe[:tokens] = dy.sum(0)
    return (
        {"batch": batch, "tokens": tokens, "vocab": vocab, "width": width, "positions": positions},
        {"tokens": ids, "wte": wte, "wpe": wpe, "d_y": dy},
        {"y": wte[ids] + wpe[:tokens], "d_wte": dwte, "d_wpe": dwpe},
    )


def rope(rng, batch, heads, tokens, head_dim, first):
    x, dy = exact(rng, batch, heads, tokens, head_dim), exact(rng, batch, heads, tokens, head_dim)
    positions = np.tile(np.arange(first, first + tokens, dtype=np.int32), (batch, 1))
    return (
        {"batch": batch, "heads": heads, "tokens": tokens, "head_dim": head_dim, "theta": 500.0},
        {"x": x, "positions": positions, "d_y": dy},
        {"y": ops.rope(x, positions, 500.0), "d_x": ops.rope(dy, positions, 500.0, -1)},
    )


def matmul(rng, rows, inner, columns):
    x, weight, bias, dy = (
        exact(rng, rows, inner),
        exact(rng, columns, inner),
        exact(rng, columns),
        exact(rng, rows, columns),
    )
    exactly = "y is a multiple of 2^-12 below 2^12: equal in every order of summation"
    return (
        {"rows": rows, "inner": inner, "columns": columns, "exact": exactly},
        {"x": x, "weight": weight, "bias": bias, "d_y": dy},
        {"y": x @ weight.T + bias, "d_x": dy @ weight, "d_weight": dy.T @ x, "d_bias": dy.sum(0)},
    )


def cases(rng):
    yield "layernorm", "narrow", layernorm(rng, False, 3, 11)
    yield "layernorm", "large_values", layernorm(rng, False, 2, 21, 64.0)
    yield "rmsnorm", "narrow", layernorm(rng, True, 4, 13)
    yield "gelu", "wide_range", gelu(rng, 41, 2.0)
    yield "swiglu", "small", swiglu(rng, 3, 9)
    yield "softmax", "small", softmax(rng, 3, 7)
    yield "attention", "two_heads", attention(rng, 2, 2, 2, 6, 5)
    yield "attention", "shared_keys", attention(rng, 1, 6, 2, 5, 4)
    yield "cross_entropy", "some_masked", cross_entropy(rng, 6, 19, 2)
    yield "cross_entropy", "all_masked", cross_entropy(rng, 2, 5, 2)
    yield "embedding", "small", embedding(rng, 2, 5, 9, 6, 8)
    yield "rope", "from_the_start", rope(rng, 2, 2, 4, 6, 0)
    yield "rope", "from_position_40", rope(rng, 1, 3, 3, 4, 40)
    yield "matmul", "small", matmul(rng, 5, 13, 9)


def write(folder, seed):
    rng = np.random.default_rng(seed)
    bundle, rows = Bundle(folder, "kernels"), []
    for kernel, case, (facts, inputs, outputs) in cases(rng):
        for name, values in inputs.items():
            dtype = "int32" if values.dtype == np.int32 else "float32"
            bundle.add(f"{kernel}/{case}/in/{name}", values, dtype)
        for name, values in outputs.items():
            bundle.add(f"{kernel}/{case}/out/{name}", values, "float64")
        rows.append({"kernel": kernel, "case": case} | facts)
    bundle.write({"cases": rows})
