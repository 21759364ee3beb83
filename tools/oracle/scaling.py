"""Loss scale, clipping, denominators and clocks."""

import math

import numpy as np

from bundle import write_json

LARGEST = float(np.finfo(np.float32).max)


class Scale:
    """Growth after `interval` clean updates in a row, backoff after an overflow; the product is rounded to fp32."""

    def __init__(self, t):
        self.t, self.scale, self.tracker = t, t["init_scale"], 0
        self.applied = self.skipped = self.growths = self.backoffs = 0
        self.ended = False

    def update(self, found_inf):
        t = self.t
        if found_inf:
            self.skipped += 1
            self.tracker = 0
            floor = t.get("floor", 0.0)
            if self.scale <= floor:
                self.ended = True
                return
            self.scale = max(float(np.float32(self.scale * t["backoff_factor"])), floor)
            self.backoffs += 1
            return
        self.applied += 1
        self.tracker += 1
        if self.tracker < t["growth_interval"]:
            return
        self.tracker = 0
        with np.errstate(over="ignore"):
            grown = float(np.float32(self.scale * t["growth_factor"]))
        if grown <= t.get("ceiling", LARGEST):
            self.scale = grown
            self.growths += 1


def trace(name, script, init_scale, growth, backoff, interval, reload_after=None, **rule):
    t = {
        "name": name,
        "source": "rule" if rule else "torch.amp.GradScaler",
        "init_scale": init_scale,
        "growth_factor": growth,
        "backoff_factor": backoff,
        "growth_interval": interval,
        **rule,
    }
    updates = [bool(found) for found, repeat in script for _ in range(repeat)]
    run = Scale(t)
    scales, trackers, skipped, totals = [], [], [], []
    for u, found in enumerate(updates, 1):
        run.update(found)
        scales.append(run.scale)
        trackers.append(run.tracker)
        skipped.append(found)
        totals.append(run.skipped)
        if u == reload_after:
            t |= {
                "reload_after": u,
                "state_dict": {
                    "scale": run.scale,
                    "growth_factor": growth,
                    "backoff_factor": backoff,
                    "growth_interval": interval,
                    "growth_tracker": run.tracker,
                },
            }
    if rule:
        t["ends_run"] = run.ended
    return t | {
        "script": script,
        "updates": len(updates),
        "record_after": list(range(1, len(updates) + 1)),
        "scale": scales,
        "scale_bits": [int(np.float32(s).view(np.uint32)) for s in scales],
        "growth_tracker": trackers,
        "skipped": skipped,
        "skipped_total": totals,
        "final": {
            "scale": run.scale,
            "growth_tracker": run.tracker,
            "applied": run.applied,
            "skipped": run.skipped,
            "growths": run.growths,
            "backoffs": run.backoffs,
        },
    }


def traces(rng):
    random = [[int(found), 1] for found in rng.random(60) < 0.15]
    return [
        trace("interval_of_five", [[0, 12], [1, 1], [0, 4], [1, 2], [0, 6]], 512.0, 2.0, 0.5, 5),
        trace("odd_factors", random, 100.0, 1.75, 0.3, 3),
        trace("saved_and_loaded", [[0, 4], [1, 1], [0, 9]], 2048.0, 4.0, 0.25, 3, reload_after=7),
        trace("up_to_the_largest", [[0, 8], [1, 1]], LARGEST / 7, 2.0, 0.5, 2),
        trace("stops_at_its_bounds", [[0, 5], [1, 7]], 24.0, 2.0, 0.5, 1, floor=2.0, ceiling=100.0),
    ]


def examples(rng):
    gradient = [float(g) for g in rng.integers(-40, 40, 5) / 8]
    norm, limit = math.sqrt(sum(g * g for g in gradient)), 2.0
    coefficient = min(1.0, limit / norm)
    tokens, losses, gradients = [5, 0, 2, 1], [1.5, None, 3.25, 0.75], [0.5, 0.0, -1.25, 2.0]
    total = sum(tokens)
    sums = sum(n * loss for n, loss in zip(tokens, losses) if n)
    huge = float(np.float32(2e25))
    return [
        {
            "id": "clip_of_five",
            "inputs": {"gradient": gradient, "max_norm": limit, "scale": 64.0},
            "expected": {
                "clipped": [g * coefficient for g in gradient],
                "norm_before": norm,
                "norm_after": norm * coefficient,
                "coefficient": coefficient,
            },
            "wrong": {"norm_after": norm * min(1.0, limit / (64 * norm))},
        },
        {
            "id": "window_of_four",
            "inputs": {"effective_tokens": tokens, "mean_loss": losses, "mean_gradient": gradients},
            "expected": {
                "loss": sums / total,
                "gradient": sum(n * g for n, g in zip(tokens, gradients)) / total,
                "effective_tokens": total,
            },
            "wrong": {"mean_of_means": sum(loss for loss in losses if loss) / 3},
        },
        {
            "id": "sum_then_clip",
            "inputs": {"gradients": [5.0, -3.5, 0.25], "max_norm": 1.5},
            "expected": {"clipped": 1.5},
            "wrong": {"clipped": 0.25},
        },
        {
            "id": "one_scale",
            "inputs": {"gradients": [1.5, -0.25], "scales": [32.0, 8.0]},
            "expected": {"sum": 1.25},
            "wrong": {"unscaled_by_last": 5.75},
        },
        {
            "id": "squares_beyond_fp32",
            "inputs": {"values": [huge, -2 * huge, 2 * huge], "times": 3, "max_norm": 10.0},
            "expected": {"norm": math.sqrt(27) * huge, "coefficient": 10.0 / (math.sqrt(27) * huge)},
            "wrong": {"fp32_norm": "inf"},
        },
        {
            "id": "two_overflows_in_a_window",
            "inputs": {
                "found_inf_per_micro_batch": [[0, 0], [1, 1], [0, 0], [0, 0]],
                "init_scale": 1024.0,
                "growth_interval": 2,
            },
            "expected": {"scale_after": [1024.0, 512.0, 512.0, 1024.0], "skipped": [False, True, False, False]},
        },
    ]


def clocks(rng):
    """AdamW with warm-up in double; a skipped update advances tokens and attempts only."""
    c = {
        "base_lr": 0.004,
        "warmup": 2,
        "total": 7,
        "beta1": 0.85,
        "beta2": 0.97,
        "eps": 1e-7,
        "weight_decay": 0.2,
        "init_scale": 256.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2,
        "found_inf": [0, 0, 1, 0, 0, 1],
        "effective_tokens": [9, 14, 3, 30, 1, 8],
    }
    p = rng.standard_normal(4)
    grads = rng.standard_normal((6, 4))
    c |= {"params": p.tolist(), "unscaled_gradients": grads.tolist(), "after": []}
    m, v = np.zeros(4), np.zeros(4)
    scale, applied, tokens = Scale(c), 0, 0
    for u, found in enumerate(c["found_inf"]):
        used, tokens, rate = scale.scale, tokens + c["effective_tokens"][u], None
        if not found:
            rate = c["base_lr"] * min(
                (applied + 1) / c["warmup"], max(0, (c["total"] - applied) / (c["total"] - c["warmup"]))
            )
            applied += 1
            p, m, v = adamw(p, m, v, grads[u], rate, applied, c)
        scale.update(bool(found))
        c["after"].append(
            {
                "attempted": u + 1,
                "applied": applied,
                "skipped": u + 1 - applied,
                "tokens_consumed": tokens,
                "scale_used": used,
                "scale_after": scale.scale,
                "learning_rate_used": rate,
                "optimizer_step": applied,
                "params": p.tolist(),
                "moment1": m.tolist(),
                "moment2": v.tolist(),
            }
        )
    return c


def adamw(p, m, v, g, rate, n, c):
    """One update with decoupled decay, in the arrays' own precision."""
    b1, b2 = c["beta1"], c["beta2"]
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    p = p * (1 - rate * c["weight_decay"]) - rate * (m / (1 - b1**n)) / (np.sqrt(v / (1 - b2**n)) + c["eps"])
    return p, m, v


def write(folder, seed):
    rng = np.random.default_rng(seed)
    write_json(f"{folder}/traces", {"traces": traces(rng)})
    write_json(f"{folder}/examples", {"examples": examples(rng)})
    write_json(f"{folder}/clocks", clocks(rng))
