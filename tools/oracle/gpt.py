"""Whole updates of small gpt2 and llama models in float64, and the same with roundings made explicit for the yardsticks."""
from types import SimpleNamespace

import numpy as np

import ops
from bundle import Bundle
from rounding import BF16, E4M3, E5M2, FP16, round_to
from scaling import adamw

ADAMW = {"lr": 0.002, "beta1": 0.8, "beta2": 0.9, "eps": 1e-8, "weight_decay": 0.15}
UPDATES = 2
NORM_EPS = 1e-6
SCALE = 256.0  # of the fp16 yardstick

GPT2 = {"vocab": 29, "n_layer": 2, "n_head": 2, "d_model": 12, "head_dim": 6, "d_hidden": 32, "seq": 9, "batch": 2, "n_context": 13}
LLAMA = {"vocab": 31, "n_layer": 1, "n_head": 4, "n_kv_head": 2, "d_model": 16, "head_dim": 4, "d_hidden": 24, "seq": 8, "batch": 2,
         "n_context": 8, "rope_theta": 500.0}


# ---- what an arithmetic stores

class Exact:
    """No rounding beyond the arrays' own precision."""

    def __init__(self, dtype=np.float64):
        self.dtype, self.scale, self.fused = dtype, 1.0, False

    def param(self, x):
        return x.astype(self.dtype)

    def r(self, x):
        return x

    def grad(self, x, accumulates):
        return x

    def product(self, a, b, a_gradient=False):
        """a @ b of a layer's linear; the last axis of a and the first of b are summed over."""
        return a @ b


class Master(Exact):
    """16-bit values between operations, gradients too unless a window accumulates; wide inside. `fused`: a residual is added
    before the product is rounded."""

    def __init__(self, f, scale=1.0, fused=False):
        super().__init__()
        self.f, self.scale, self.fused = f, scale, fused

    def param(self, x):
        return round_to(x, self.f)

    def r(self, x):
        return round_to(x, self.f)

    def grad(self, x, accumulates):
        return x if accumulates else round_to(x, self.f)


class Fp8(Master):
    """bf16 with the operands of layer linears in FP8, scaled along the axis that is summed over."""

    def __init__(self, block=None, e8m0=False, fused=False):
        super().__init__(BF16, fused=fused)
        self.block, self.e8m0 = block, e8m0

    def quantize(self, x, f):
        """The last axis is summed over; one scale a tensor, or one for each block of it."""
        if self.block is None:
            return self.scaled(x, f, np.abs(x).max())
        parts = [x[:, i:i + self.block] for i in range(0, x.shape[1], self.block)]
        return np.concatenate([self.scaled(p, f, np.abs(p).max(1, keepdims=True)) for p in parts], 1)

    def scaled(self, x, f, amax):
        amax = np.where(amax == 0, f.max_finite, amax)
        if self.e8m0:
            scale = 2.0 ** -np.ceil(np.log2(amax / f.max_finite))
        else:
            scale = (np.float32(f.max_finite) / amax.astype(np.float32)).astype(np.float64)
        return round_to(x * scale, f, True) / scale

    def product(self, a, b, a_gradient=False):
        return self.quantize(a, E5M2 if a_gradient else E4M3) @ self.quantize(b.T, E4M3).T


# ---- the models

def linear(m, x, weight, bias=None, residual=None):
    y = m.product(x, weight.T) + (0 if bias is None else bias)
    if residual is None:
        return m.r(y)
    return m.r(residual + (y if m.fused else m.r(y)))


def linear_backward(m, dy, x, weight):
    """(dx, dweight, dbias)"""
    return m.r(m.product(dy, weight, True)), m.product(dy.T, x, True), dy.sum(0)


def heads(x, batch, count):
    return x.reshape(batch, -1, count, x.shape[-1] // count).swapaxes(1, 2)


def rows(x):
    return x.swapaxes(1, 2).reshape(x.shape[0] * x.shape[2], -1)


class Model:
    def __init__(self, config, family):
        self.c, self.family = SimpleNamespace(**config), family
        self.rms = family == "llama"
        self.kv = config.get("n_kv_head", config["n_head"])

    def shapes(self):
        c, d = self.c, self.c.d_model
        q, k = c.n_head * c.head_dim, self.kv * c.head_dim
        if self.rms:
            s = {"tok_embeddings.weight": (c.vocab, d)}
            for i in range(c.n_layer):
                p = f"layers.{i}."
                s |= {p + "attention_norm.weight": (d,), p + "attention.wq.weight": (q, d), p + "attention.wk.weight": (k, d),
                      p + "attention.wv.weight": (k, d), p + "attention.wo.weight": (d, q), p + "ffn_norm.weight": (d,),
                      p + "feed_forward.gate.weight": (c.d_hidden, d), p + "feed_forward.up.weight": (c.d_hidden, d),
                      p + "feed_forward.down.weight": (d, c.d_hidden)}
            return s | {"norm.weight": (d,), "output.weight": (c.vocab, d)}
        s = {"wte.weight": (c.vocab, d), "wpe.weight": (c.n_context, d)}
        for i in range(c.n_layer):
            p = f"h.{i}."
            s |= {p + "ln_1.weight": (d,), p + "ln_1.bias": (d,), p + "attn.c_attn.weight": (3 * d, d),
                  p + "attn.c_attn.bias": (3 * d,), p + "attn.c_proj.weight": (d, d), p + "attn.c_proj.bias": (d,),
                  p + "ln_2.weight": (d,), p + "ln_2.bias": (d,), p + "mlp.c_fc.weight": (c.d_hidden, d),
                  p + "mlp.c_fc.bias": (c.d_hidden,), p + "mlp.c_proj.weight": (d, c.d_hidden), p + "mlp.c_proj.bias": (d,)}
        return s | {"ln_f.weight": (d,), "ln_f.bias": (d,)}

    def initial(self, rng):
        params = {}
        for name, shape in self.shapes().items():
            mean = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
            params[name] = (mean + rng.standard_normal(shape) * (0.03 if len(shape) == 2 else 0.1)).astype(np.float32)
        return params

    def micro_batch(self, m, w, mb, grads, divisor, watch=None):
        """Loss sum; adds to grads the gradient of loss sum · m.scale / divisor."""
        c, batch = self.c, mb.tokens.shape[0]
        r, ids, place = m.r, mb.tokens.ravel(), mb.positions.ravel()
        position = mb.positions
        same = mb.segments[:, :, None] == mb.segments[:, None, :]
        mask = same & np.tri(c.seq, dtype=bool)[None]
        watch = {} if watch is None else watch
        if self.rms:
            x = r(w["tok_embeddings.weight"][ids])
        else:
            x = r(w["wte.weight"][ids] + w["wpe.weight"][place])
        watch["embedding"] = x
        layers = []
        for i in range(c.n_layer):
            x, cache = self.layer(m, w, x, i, batch, mask, position, watch)
            layers.append(cache)
        table = "output.weight" if self.rms else "wte.weight"
        last = ("norm.weight", None) if self.rms else ("ln_f.weight", "ln_f.bias")
        y, final = ops.norm(x, w[last[0]], w.get(last[1]), NORM_EPS, self.rms, r)
        watch["final_norm"] = y
        logits = r(y @ w[table].T)
        watch["logits"] = logits
        losses, dlogits = ops.cross_entropy(logits, mb.targets.ravel())
        dlogits = r(dlogits * (m.scale / divisor))

        def add(name, value):
            grads[name] = grads.get(name, 0) + value

        add(table, dlogits.T @ y)
        dx, dgain, dbias = ops.norm_backward(r(dlogits @ w[table]), final, r)
        add(last[0], dgain)
        if last[1]:
            add(last[1], dbias)
        for i in reversed(range(c.n_layer)):
            dx = self.layer_backward(m, w, dx, i, batch, position, layers[i], add)
        rows_of_tokens = np.zeros_like(w["tok_embeddings.weight" if self.rms else "wte.weight"])
        np.add.at(rows_of_tokens, ids, dx)
        add("tok_embeddings.weight" if self.rms else "wte.weight", rows_of_tokens)
        if not self.rms:
            rows_of_places = np.zeros_like(w["wpe.weight"])
            np.add.at(rows_of_places, place, dx)
            add("wpe.weight", rows_of_places)
        return float(losses.sum(dtype=np.float64))

    def names(self, i):
        p = f"layers.{i}." if self.rms else f"h.{i}."
        if self.rms:
            return SimpleNamespace(p=p, norm1=p + "attention_norm", norm2=p + "ffn_norm", out=p + "attention.wo",
                                   down=p + "feed_forward.down")
        return SimpleNamespace(p=p, norm1=p + "ln_1", norm2=p + "ln_2", out=p + "attn.c_proj", down=p + "mlp.c_proj")

    def projections(self, w, i):
        """The fused weights that read the first norm, and those that read the second."""
        n = self.names(i)
        if self.rms:
            qkv = [n.p + f"attention.w{x}.weight" for x in "qkv"]
            up = [n.p + f"feed_forward.{x}.weight" for x in ("gate", "up")]
            return qkv, up
        return [n.p + "attn.c_attn.weight"], [n.p + "mlp.c_fc.weight"]

    def layer(self, m, w, x, i, batch, mask, position, watch):
        c, n, r = self.c, self.names(i), m.r
        qkv_names, up_names = self.projections(w, i)

        def bias(name):
            return w.get(name + ".bias")

        k = SimpleNamespace()
        k.a, k.norm1 = ops.norm(x, w[n.norm1 + ".weight"], bias(n.norm1), NORM_EPS, self.rms, r)
        k.qkv_weight = np.concatenate([w[name] for name in qkv_names])
        qkv = linear(m, k.a, k.qkv_weight, w.get(n.p + "attn.c_attn.bias"))
        q_width, kv_width = c.n_head * c.head_dim, self.kv * c.head_dim
        q, key, v = np.split(qkv, [q_width, q_width + kv_width], 1)
        q, key, v = heads(q, batch, c.n_head), heads(key, batch, self.kv), heads(v, batch, self.kv)
        if self.rms:
            q, key = (ops.rope(t, position, c.rope_theta, 1, r) for t in (q, key))
        y, k.attention = ops.attention(q, key, v, mask, r)
        k.y = rows(y)
        x = linear(m, k.y, w[n.out + ".weight"], bias(n.out), x)
        watch[n.p + "after_attention"] = x
        k.b, k.norm2 = ops.norm(x, w[n.norm2 + ".weight"], bias(n.norm2), NORM_EPS, self.rms, r)
        k.up_weight = np.concatenate([w[name] for name in up_names])
        k.hidden = linear(m, k.b, k.up_weight, w.get(n.p + "mlp.c_fc.bias"))
        k.act = ops.swiglu(*np.split(k.hidden, 2, 1), r) if self.rms else ops.gelu(k.hidden, r)
        x = linear(m, k.act, w[n.down + ".weight"], bias(n.down), x)
        watch[n.p + "after_mlp"] = x
        return x, k

    def layer_backward(self, m, w, dout, i, batch, position, k, add):
        c, n, r = self.c, self.names(i), m.r
        qkv_names, up_names = self.projections(w, i)

        def split_weight(names, dweight):
            for name in names:
                add(name, dweight[:len(w[name])])
                dweight = dweight[len(w[name]):]

        def project(name, dy, x):
            dx, dweight, dbias = linear_backward(m, dy, x, w[name + ".weight"])
            add(name + ".weight", dweight)
            if name + ".bias" in w:
                add(name + ".bias", dbias)
            return dx

        def through_norm(name, dy, cache, residual):
            dx, dgain, dbias = ops.norm_backward(dy, cache)
            add(name + ".weight", dgain)
            if name + ".bias" in w:
                add(name + ".bias", dbias)
            return r(dx + residual)

        dact = project(n.down, dout, k.act)
        if self.rms:
            dhidden = np.concatenate(ops.swiglu_backward(dact, *np.split(k.hidden, 2, 1), r), 1)
        else:
            dhidden = ops.gelu_backward(dact, k.hidden, r)
        db, dweight, dbias = linear_backward(m, dhidden, k.b, k.up_weight)
        split_weight(up_names, dweight)
        if not self.rms:
            add(n.p + "mlp.c_fc.bias", dbias)
        dmiddle = through_norm(n.norm2, db, k.norm2, dout)

        dy = heads(project(n.out, dmiddle, k.y), batch, c.n_head)
        dq, dk, dv = ops.attention_backward(dy, k.attention)
        if self.rms:
            dq, dk = (ops.rope(t, position, c.rope_theta, -1, r) for t in (dq, dk))
        dqkv = np.concatenate([rows(t) for t in (dq, dk, dv)], 1)
        da, dweight, dbias = linear_backward(m, dqkv, k.a, k.qkv_weight)
        split_weight(qkv_names, dweight)
        if not self.rms:
            add(n.p + "attn.c_attn.bias", dbias)
        return through_norm(n.norm1, da, k.norm1, dmiddle)


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
        out.after[u] = {"params": dict(master), "moment1": {k: s[0] for k, s in state.items()},
                        "moment2": {k: s[1] for k, s in state.items()}}
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
    y = {"loss_rel_diff": [abs(x / t - 1) for x, t in zip(got.loss, want.loss)],
         "grad_norm_rel_diff": [abs(x / t - 1) for x, t in zip(got.grad_norm, want.grad_norm)],
         "loss_on_window_1_after": got.evaluated, "state_after": {},
         "grads": {"l2_rel": l2_rel(a, b), "cosine": float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)),
                   "l2_rel_layer_linears": l2_rel(flat({k: got.grads[k] for k in inside}), flat({k: want.grads[k] for k in inside})),
                   "max_rel_of_worst_tensor": max_rel(got.grads, want.grads)}}
    for u, reached in want.after.items():
        mine = got.after[u]
        clear = {k: np.abs(g) >= 1e-3 * np.abs(g).max() for k, g in want.grads.items()}
        beyond = max(float(np.abs(mine["params"][k] - t)[clear[k]].max()) for k, t in reached["params"].items())
        y["state_after"][str(u)] = {
            "params_all": {"update_l2_rel": l2_rel(flat(mine["params"]) - flat(start), flat(reached["params"]) - flat(start))},
            "params_clear": {"max_abs_over_lr": beyond / ADAMW["lr"]}} | {
            k: {"max_rel": max_rel(mine[k], reached[k]), "l2_rel": l2_rel(flat(mine[k]), flat(reached[k]))}
            for k in ("moment1", "moment2")}
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
    near = [start] + [{k: (p * (1 + 2e-3 * rng.standard_normal(p.shape))).astype(np.float32) for k, p in start.items()}
                      for _ in range(3)]
    exact = [want] + [run(model, Exact(), p, windows, v) for p in near[1:]]
    kinds = {"fp32": lambda fused: Exact(np.float32), "bf16_master": lambda fused: Master(BF16, fused=fused),
             f"fp16_master_scale_{SCALE:g}": lambda fused: Master(FP16, SCALE, fused),
             "fp8_hybrid_current": lambda fused: Fp8(fused=fused), "fp8_block": lambda fused: Fp8(128, fused=fused),
             "mxfp8": lambda fused: Fp8(32, True, fused)}
    found = {}
    for name, make in kinds.items():
        reports = [yardstick(run(model, make(fused), p, windows, v), t, p) for p, t in zip(near, exact) for fused in (False, True)]
        found[name] = worst(reports)
        found[name].pop("loss_on_window_1_after")  # of other starts
    return found


def fingerprint(a):
    a = np.asarray(a, np.float64).ravel()
    return [float(np.linalg.norm(a)), float(a.sum()), float(np.abs(a).max()), float((a * (1 + np.arange(a.size) % 97)).sum())]


# ---- data

def micro_batch(rng, c, masked=0.0, documents=False):
    tokens = rng.integers(0, c["vocab"], (c["batch"], c["seq"])).astype(np.int32)
    targets = np.roll(tokens, -1, 1)
    targets[:, -1] = rng.integers(0, c["vocab"], c["batch"])
    targets = np.where(rng.random(targets.shape) < masked, -1, targets).astype(np.int32)
    mb = SimpleNamespace(tokens=tokens, targets=targets, documents=documents, segments=np.zeros_like(tokens),
                         positions=np.tile(np.arange(c["seq"], dtype=np.int32), (c["batch"], 1)))
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
    "steep": {"multiply_2d_params0_by": 6.0},
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
            "windows": stored, "effective_tokens": want.effective, "loss": want.loss, "grad_norm": want.grad_norm,
            "clip_coefficient": want.clip, f"loss_on_window_1_after_update_{UPDATES}": want.evaluated,
            "fingerprints": {path: {k: fingerprint(t) for k, t in tensors.items()} for path, tensors in prints.items()},
            "yardsticks": yardsticks(rng, model, start, windows, v, want)}
    bundle.write({"model": family, "config": config, "seed": seed, "order": list(params0), "adamw": ADAMW, "norm_eps": NORM_EPS,
                  "updates": UPDATES, "variants": entries})


def write(folder, seed):
    write_model(folder, "tiny_gpt2", "gpt2", GPT2, list(VARIANTS), seed)
    write_model(folder, "tiny_llama", "llama", LLAMA, ["plain", "ragged", "documents", "steep"], seed + 1)
