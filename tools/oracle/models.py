"""gpt2 and llama, forward and backward, in an arithmetic that says what is stored between operations."""

from types import SimpleNamespace

import numpy as np

import ops
from rounding import BF16, E4M3, E5M2, round_to

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
        parts = [x[:, i : i + self.block] for i in range(0, x.shape[1], self.block)]
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
    NORM_EPS = 1e-6

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
                s |= {
                    p + "attention_norm.weight": (d,),
                    p + "attention.wq.weight": (q, d),
                    p + "attention.wk.weight": (k, d),
                    p + "attention.wv.weight": (k, d),
                    p + "attention.wo.weight": (d, q),
                    p + "ffn_norm.weight": (d,),
                    p + "feed_forward.gate.weight": (c.d_hidden, d),
                    p + "feed_forward.up.weight": (c.d_hidden, d),
                    p + "feed_forward.down.weight": (d, c.d_hidden),
                }
            return s | {"norm.weight": (d,), "output.weight": (c.vocab, d)}
        s = {"wte.weight": (c.vocab, d), "wpe.weight": (c.n_context, d)}
        for i in range(c.n_layer):
            p = f"h.{i}."
            s |= {
                p + "ln_1.weight": (d,),
                p + "ln_1.bias": (d,),
                p + "attn.c_attn.weight": (3 * d, d),
                p + "attn.c_attn.bias": (3 * d,),
                p + "attn.c_proj.weight": (d, d),
                p + "attn.c_proj.bias": (d,),
                p + "ln_2.weight": (d,),
                p + "ln_2.bias": (d,),
                p + "mlp.c_fc.weight": (c.d_hidden, d),
                p + "mlp.c_fc.bias": (c.d_hidden,),
                p + "mlp.c_proj.weight": (d, c.d_hidden),
                p + "mlp.c_proj.bias": (d,),
            }
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
        y, final = ops.norm(x, w[last[0]], w.get(last[1]), self.NORM_EPS, self.rms, r)
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
            return SimpleNamespace(
                p=p,
                norm1=p + "attention_norm",
                norm2=p + "ffn_norm",
                out=p + "attention.wo",
                down=p + "feed_forward.down",
            )
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
        k.a, k.norm1 = ops.norm(x, w[n.norm1 + ".weight"], bias(n.norm1), self.NORM_EPS, self.rms, r)
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
        k.b, k.norm2 = ops.norm(x, w[n.norm2 + ".weight"], bias(n.norm2), self.NORM_EPS, self.rms, r)
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
                add(name, dweight[: len(w[name])])
                dweight = dweight[len(w[name]) :]

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
