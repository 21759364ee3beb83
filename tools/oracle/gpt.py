"""Whole updates of small gpt2 and llama models in float64, and the same with roundings made explicit for the yardsticks."""

from types import SimpleNamespace

import numpy as np

from bundle import Bundle
from models import Exact, Fp8, Master, Model
from rounding import BF16, FP16
from scaling import adamw

ADAMW = {"lr": 0.002, "beta1": 0.8, "beta2": 0.9, "eps": 1e-8, "weight_decay": 0.15}
UPDATES = 2
SCALE = 256.0  # of the fp16 yardstick

GPT2 = {
    "vocab": 29,
    "n_layer": 2,
    "n_head": 2,
    "d_model": 12,
    "head_dim": 6,
    "d_hidden": 32,
    "seq": 9,
    "batch": 2,
    "n_context": 13,
}
LLAMA = {
    "vocab": 31,
    "n_layer": 1,
    "n_head": 4,
    "n_kv_head": 2,
    "d_model": 16,
    "head_dim": 4,
    "d_hidden": 24,
    "seq": 8,
    "batch": 2,
    "n_context": 8,
    "rope_theta": 500.0,
}


# ---- updates


def run(model, m, params0, windows, variant):
    """Losses, norms, first gradients (unscaled) and states of all updates."""
    master = {k: v.astype(np.float64 if m.dtype == np.float64 else m.dtype) for k, v in params0.items()}
    state = {k: (np.zeros_like(v), np.zeros_like(v)) for k, v in master.items()}
    out = SimpleNamespace(loss=[], grad_norm=[], clip=[], effective=[], after={}, watch={})

    def window_grads(window, watch=None):
        w, grads, loss = {k: m.param(v) for k, v in master.items()}, {}, 0.0
        tokens = sum(int((mb.targets >= 0).sum()) for mb in window)
        for i, mb in enumerate(window):
            loss += model.micro_batch(m, w, mb, grads, tokens, watch if i == 0 else None)
        accumulates = len(window) > 1
        return loss / tokens, {k: m.grad(g, accumulates) / m.scale for k, g in grads.items()}, tokens

    for u, window in enumerate(windows, 1):
        loss, grads, tokens = window_grads(window, out.watch if u == 1 else None)
        norm = float(np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in grads.values())))
        clip = min(1.0, variant["max_norm"] / norm) if variant["max_norm"] else 1.0
        if u == 1:
            out.grads = {k: grads[k] for k in params0}
        for k, p in master.items():
            c = ADAMW | ({} if p.ndim == 2 or variant["weight_decay_on"] == "all" else {"weight_decay": 0.0})
            p, m1, m2 = adamw(p, *state[k], grads[k] * clip, ADAMW["lr"], u, c)
            master[k], state[k] = p, (m1, m2)
        out.loss.append(loss)
        out.grad_norm.append(norm)
        out.clip.append(clip)
        out.effective.append(tokens)
        out.after[u] = {
            "params": dict(master),
            "moment1": {k: s[0] for k, s in state.items()},
            "moment2": {k: s[1] for k, s in state.items()},
        }
    out.evaluated = window_grads(windows[0])[0]
    return out


def flat(tensors):
    return np.concatenate([np.asarray(t, np.float64).ravel() for t in tensors.values()])


def l2_rel(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def max_rel(a, b):
    return max(float(np.abs(a[k] - b[k]).max() / np.abs(b[k]).max()) for k in b)


def yardstick(got, want, start):
    """How far a narrower run is from the exact one."""
    inside = [k for k, g in want.grads.items() if g.ndim == 2 and k.startswith(("h.", "layers."))]
    a, b = flat(got.grads), flat(want.grads)
    y = {
        "loss_rel_diff": [abs(x / t - 1) for x, t in zip(got.loss, want.loss)],
        "grad_norm_rel_diff": [abs(x / t - 1) for x, t in zip(got.grad_norm, want.grad_norm)],
        "loss_on_window_1_after": got.evaluated,
        "state_after": {},
        "grads": {
            "l2_rel": l2_rel(a, b),
            "cosine": float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)),
            "l2_rel_layer_linears": l2_rel(
                flat({k: got.grads[k] for k in inside}), flat({k: want.grads[k] for k in inside})
            ),
            "max_rel_of_worst_tensor": max_rel(got.grads, want.grads),
        },
    }
    for u, reached in want.after.items():
        mine = got.after[u]
        clear = {k: np.abs(g) >= 1e-3 * np.abs(g).max() for k, g in want.grads.items()}
        beyond = max(float(np.abs(mine["params"][k] - t)[clear[k]].max()) for k, t in reached["params"].items())
        y["state_after"][str(u)] = {
            "params_all": {
                "update_l2_rel": l2_rel(flat(mine["params"]) - flat(start), flat(reached["params"]) - flat(start))
            },
            "params_clear": {"max_abs_over_lr": beyond / ADAMW["lr"]},
        } | {
            k: {"max_rel": max_rel(mine[k], reached[k]), "l2_rel": l2_rel(flat(mine[k]), flat(reached[k]))}
            for k in ("moment1", "moment2")
        }
    return y


def worst(reports):
    """The largest of every figure, the smallest cosine; six digits are enough."""
    first = reports[0]
    if isinstance(first, dict):
        return {k: min(r[k] for r in reports) if k == "cosine" else worst([r[k] for r in reports]) for k in first}
    if isinstance(first, list):
        return [worst(list(values)) for values in zip(*reports)]
    return float(f"{max(reports):.6g}")


def yardsticks(rng, model, start, windows, v, want):
    """The worst over two placements of the roundings, and over starts near this one."""
    near = [start] + [
        {k: (p * (1 + 2e-3 * rng.standard_normal(p.shape))).astype(np.float32) for k, p in start.items()}
        for _ in range(9)
    ]
    exact = [want] + [run(model, Exact(), p, windows, v) for p in near[1:]]
    kinds = {
        "fp32": lambda fused: Exact(np.float32),
        "bf16_master": lambda fused: Master(BF16, fused=fused),
        f"fp16_master_scale_{SCALE:g}": lambda fused: Master(FP16, SCALE, fused),
        "fp8_hybrid_current": lambda fused: Fp8(fused=fused),
        "fp8_block": lambda fused: Fp8(128, fused=fused),
        "mxfp8": lambda fused: Fp8(32, True, fused),
    }
    found = {}
    for name, make in kinds.items():
        reports = [
            yardstick(run(model, make(fused), p, windows, v), t, p)
            for p, t in zip(near, exact)
            for fused in (False, True)
        ]
        found[name] = worst(reports)
        found[name].pop("loss_on_window_1_after")  # of other starts
    return found


def fingerprint(a):
    a = np.asarray(a, np.float64).ravel()
    return [
        float(np.linalg.norm(a)),
        float(a.sum()),
        float(np.abs(a).max()),
        float((a * (1 + np.arange(a.size) % 97)).sum()),
    ]


# ---- data


def micro_batch(rng, c, masked=0.0, documents=False):
    tokens = rng.integers(0, c["vocab"], (c["batch"], c["seq"])).astype(np.int32)
    targets = np.roll(tokens, -1, 1)
    targets[:, -1] = rng.integers(0, c["vocab"], c["batch"])
    targets = np.where(rng.random(targets.shape) < masked, -1, targets).astype(np.int32)
    mb = SimpleNamespace(
        tokens=tokens,
        targets=targets,
        documents=documents,
        segments=np.zeros_like(tokens),
        positions=np.tile(np.arange(c["seq"], dtype=np.int32), (c["batch"], 1)),
    )
    if documents:
        for row in range(c["batch"]):
            border = int(rng.integers(2, c["seq"] - 2))
            mb.segments[row, border:] = 1
            mb.positions[row, border:] -= border
            mb.targets[row, border - 1] = -1
    return mb


VARIANTS = {
    "plain": {},
    "ragged": {"masks": [0.2, 1.0, 0.8]},
    "clipped": {"max_norm": 0.25, "weight_decay_on": "all"},
    "documents": {"documents": True},
    "steep": {"multiply_2d_params0_by": 5.0},
}


def write_model(folder, name, family, config, variants, seed):
    rng = np.random.default_rng(seed)
    model, bundle, entries = Model(config, family), Bundle(folder, name), {}
    params0 = model.initial(rng)
    for k, p in params0.items():
        bundle.add("params0/" + k, p, "float32")
    for label in variants:
        v = {"weight_decay_on": "matrices", "max_norm": None, "multiply_2d_params0_by": 1.0} | VARIANTS[label]
        masks, documents = v.pop("masks", [0.0]), v.pop("documents", False)
        windows = [[micro_batch(rng, config, mask, documents) for mask in masks] for _ in range(UPDATES)]
        start = {k: (p * np.float32(v["multiply_2d_params0_by"]) if p.ndim == 2 else p) for k, p in params0.items()}
        want = run(model, Exact(), start, windows, v)
        stored = []
        for u, window in enumerate(windows, 1):
            stored.append([])
            for i, mb in enumerate(window):
                names = {}
                for key in ("tokens", "targets") + (("segments", "positions") if documents else ()):
                    names[key] = f"data/{label}/u{u}m{i}/{key}"
                    bundle.add(names[key], getattr(mb, key), "int32")
                stored[-1].append({"segments": None, "positions": None} | names)
        full = label == "plain"
        for k, g in want.grads.items():
            if full or "ln_" in k or "norm" in k:
                bundle.add(f"{label}/grads/{k}", g, "float64" if full else "float32")
        if full:
            for kind, tensors in want.after[UPDATES].items():
                for k, t in tensors.items():
                    bundle.add(f"{label}/after{UPDATES}/{kind}/{k}", t, "float32")
            for k, t in want.watch.items():
                path = "logits" if k == "logits" else "activations/" + k
                bundle.add(f"{label}/{path}", t.reshape(config["batch"], config["seq"], -1), "float64")
        prints = {"grads": want.grads} | ({f"after{UPDATES}/params": want.after[UPDATES]["params"]} if full else {})
        entries[label] = v | {
            "windows": stored,
            "effective_tokens": want.effective,
            "loss": want.loss,
            "grad_norm": want.grad_norm,
            "clip_coefficient": want.clip,
            f"loss_on_window_1_after_update_{UPDATES}": want.evaluated,
            "fingerprints": {path: {k: fingerprint(t) for k, t in tensors.items()} for path, tensors in prints.items()},
            "yardsticks": yardsticks(rng, model, start, windows, v, want),
        }
    bundle.write(
        {
            "model": family,
            "config": config,
            "seed": seed,
            "order": list(params0),
            "adamw": ADAMW,
            "norm_eps": Model.NORM_EPS,
            "updates": UPDATES,
            "variants": entries,
        }
    )


def write(folder, seed):
    write_model(folder, "tiny_gpt2", "gpt2", GPT2, list(VARIANTS), seed)
    write_model(folder, "tiny_llama", "llama", LLAMA, ["plain", "ragged", "documents", "steep"], seed + 1)
