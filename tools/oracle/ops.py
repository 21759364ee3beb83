"""Operations of the two model families with their derivatives, in the precision of their arrays.

`r` (identity unless given) rounds what an operation would store.
"""

from types import SimpleNamespace

import numpy as np


def keep(x):
    return x


def norm(x, gain, bias, eps, rms, r=keep):
    """Layer norm (biased variance) or RMS norm over the last axis."""
    mean = np.zeros_like(x[..., :1]) if rms else x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    xhat = (x - mean) * rstd
    y = r(xhat * gain + (0 if bias is None else bias))
    return y, SimpleNamespace(xhat=xhat, gain=gain, rstd=rstd, mean=mean, rms=rms)


def norm_backward(dy, c, r=keep):
    g = dy * c.gain
    dx = g - c.xhat * (g * c.xhat).mean(-1, keepdims=True)
    if not c.rms:
        dx = dx - g.mean(-1, keepdims=True)
    rows = tuple(range(dy.ndim - 1))
    return r(c.rstd * dx), (dy * c.xhat).sum(rows), dy.sum(rows)


def gelu(x, r=keep):
    return r(x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def gelu_backward(dy, x, r=keep):
    root = float(np.sqrt(2 / np.pi))
    t = np.tanh(root * (x + 0.044715 * x**3))
    return r(dy * ((1 + t) / 2 + x / 2 * (1 - t * t) * root * (1 + 3 * 0.044715 * x**2)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def swiglu(gate, up, r=keep):
    return r(gate * sigmoid(gate) * up)


def swiglu_backward(dy, gate, up, r=keep):
    s = sigmoid(gate)
    return r(dy * up * s * (1 + gate * (1 - s))), r(dy * gate * s)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v, mask, r=keep):
    """q [batch, heads, tokens, head_dim], k and v with fewer heads; mask [batch or 1, tokens, tokens]."""
    group = q.shape[1] // k.shape[1]
    kk, vv = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scale = 1 / float(np.sqrt(q.shape[-1]))
    scores = np.where(mask[:, None], q @ np.swapaxes(kk, -1, -2) * scale, -np.inf)
    top = scores.max(-1, keepdims=True)
    lse = (top + np.log(np.exp(scores - top).sum(-1, keepdims=True)))[..., 0]
    p = np.exp(scores - lse[..., None])
    y = r(r(p) @ vv)
    return y, SimpleNamespace(q=q, kk=kk, vv=vv, p=p, y=y, lse=lse, scale=scale, group=group, r=r)


def attention_backward(dy, c):
    r = c.r
    delta = (c.y * dy).sum(-1, keepdims=True)
    ds = r(c.p * (dy @ np.swapaxes(c.vv, -1, -2) - delta)) * c.scale
    dq = ds @ c.kk

    def of_kv_head(x):
        return x.reshape(x.shape[0], -1, c.group, *x.shape[2:]).sum(2)

    dk = of_kv_head(np.swapaxes(ds, -1, -2) @ c.q)
    dv = of_kv_head(np.swapaxes(r(c.p), -1, -2) @ dy)
    return r(dq), r(dk), r(dv)


def rope(x, positions, theta, direction=1, r=keep):
    """Pairs (j, j + head_dim/2) of [batch, heads, tokens, head_dim] turned by position · theta^(-2j/head_dim)."""
    half = x.shape[-1] // 2
    angle = positions[:, None, :, None].astype(np.float64) * theta ** (-2.0 * np.arange(half) / x.shape[-1])
    c, s = np.cos(angle).astype(x.dtype), (direction * np.sin(angle)).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return r(np.concatenate([a * c - b * s, a * s + b * c], -1))


def cross_entropy(logits, targets):
    """Losses and their gradients by row; a target of -1 carries neither."""
    effective = (targets >= 0).astype(logits.dtype)
    top = logits.max(-1)
    lse = top + np.log(np.exp(logits - top[:, None]).sum(-1))
    rows = np.arange(len(targets))
    target = np.maximum(targets, 0)
    dlogits = np.exp(logits - lse[:, None])
    dlogits[rows, target] -= 1
    return (lse - logits[rows, target]) * effective, dlogits * effective[:, None]
