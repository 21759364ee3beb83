"""The optimizer, in float64 and float32."""

import numpy as np

from bundle import Bundle
from scaling import adamw

CASES = [
    {
        "name": "vector",
        "shape": [23],
        "lr": 0.002,
        "beta1": 0.8,
        "beta2": 0.9,
        "eps": 1e-6,
        "weight_decay": 0.05,
        "spread": 0,
    },
    {
        "name": "matrix_with_skips",
        "shape": [5, 7],
        "lr": 0.001,
        "beta1": 0.9,
        "beta2": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "spread": 3,
        "skipped_updates": [0, 2],
    },
    {
        "name": "own_rates",
        "shape": [17],
        "lr": 0.003,
        "lr_per_update": [0.001, 0.003, 0.0, 0.002],
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "spread": 1,
    },
    {
        "name": "squares_overflow",
        "shape": [3],
        "lr": 0.001,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "spread": 0,
        "size": 4e20,
    },
]
UPDATES = 4


def run(case, p, grads, dtype):
    m, v, n, states = np.zeros_like(p), np.zeros_like(p), 0, []
    rates = case["lr_per_update"] or [case["lr"]] * UPDATES
    for u in range(UPDATES):
        if u not in case["skipped_updates"]:
            n += 1
            with np.errstate(over="ignore"):
                p, m, v = adamw(p, m, v, grads[u].astype(dtype), rates[u], n, case)
        states.append((p, m, v, n))
    return states


def write(folder, seed):
    rng = np.random.default_rng(seed)
    bundle, rows = Bundle(folder, "adamw"), []
    for spec in CASES:
        case = {"skipped_updates": [], "lr_per_update": None, **spec}
        size, spread = case.pop("size", 1.0), case.pop("spread")
        p0 = rng.standard_normal(case["shape"]).astype(np.float32)
        grads = (
            rng.standard_normal([UPDATES, *case["shape"]])
            * size
            * 10.0 ** (spread * rng.standard_normal([UPDATES, *case["shape"]]))
        ).astype(np.float32)
        bundle.add(case["name"] + ".params0", p0, "float32")
        bundle.add(case["name"] + ".grads", grads, "float32")
        finite = True
        for suffix, dtype in (("f64", np.float64), ("f32", np.float32)):
            states = run(case, p0.astype(dtype), grads, dtype)
            for i, kind in enumerate(("params", "moment1", "moment2")):
                bundle.add(f"{case['name']}.{kind}_{suffix}", [s[i] for s in states], dtype.__name__)
            finite = finite and all(np.isfinite(s[2]).all() for s in states)
        rows.append(
            case | {"updates": UPDATES, "optimizer_step_after": [s[3] for s in states], "fp32_moment2_finite": finite}
        )
    bundle.write({"cases": rows})
