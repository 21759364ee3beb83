#!/usr/bin/env python3
"""The same GPT-2 update in PyTorch on the CPU, eager: forward, backward, gradient clipping, AdamW, in FP32.

Prints the median seconds of an update and its quartiles. Needs torch; alternate it with
  mixroof run --model gpt2-124m --seq 64 --tokens-per-update 256 --recipes fp32 --parts steps
on the same machine, a process each, several times.
"""
import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

SHAPES = {"gpt2-124m": (12, 768, 12), "gpt2-355m": (24, 1024, 16)}
VOCAB, CONTEXT = 50257, 1024


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, seq, width = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(batch, seq, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(attended.transpose(1, 2).reshape(batch, seq, width))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers, width, heads):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="gpt2-124m")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--fused", action="store_true", help="the fused AdamW instead of the default one")
    parser.add_argument("--keep-grads", action="store_true", help="zero gradients in place instead of freeing them")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = Gpt2(*SHAPES[args.model])
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, 0.0, 0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=args.fused or None)
    seconds = []
    for update in range(args.updates + 2):
        data = torch.randint(0, VOCAB, (args.micro_batch, args.seq + 1))
        start = time.perf_counter()
        loss = model(data[:, :-1], data[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not args.keep_grads)
        if update >= 2:  # the first two warm caches and allocator
            seconds.append(time.perf_counter() - start)
    low, median, high = statistics.quantiles(seconds, n=4)
    print(f"torch {torch.__version__}, {args.threads} threads, {args.model} {args.micro_batch}x{args.seq} fp32: "
          f"median {median:.3f} s (quartiles {low:.3f} to {high:.3f}), {len(seconds)} updates, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
