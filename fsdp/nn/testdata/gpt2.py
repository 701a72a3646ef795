"""Writes gpt2.safetensors, a small model with the names and layouts of Hugging Face's gpt2, and gpt2.json, its logits.

    python gpt2.py   # needs numpy and safetensors

The weights are float32. The logits are computed from them in float64 by the formulae of GPT-2's own source
(https://github.com/openai/gpt-2/blob/master/src/model.py), which multiplies activations by [in, out] matrices from the right.
"""
import json

import numpy as np
from safetensors.numpy import save_file

LAYERS, DIM, HEADS, VOCAB, CONTEXT = 2, 12, 3, 17, 9
random = np.random.default_rng(2019)


def normal(*shape, mean=0.0, std=0.3):
    return random.normal(mean, std, shape).astype(np.float32)


weights = {"wte.weight": normal(VOCAB, DIM), "wpe.weight": normal(CONTEXT, DIM)}
for i in range(LAYERS):
    for name, rows, columns in [("attn.c_attn", DIM, 3 * DIM), ("attn.c_proj", DIM, DIM),
                                ("mlp.c_fc", DIM, 4 * DIM), ("mlp.c_proj", 4 * DIM, DIM)]:
        weights[f"h.{i}.{name}.weight"] = normal(rows, columns)
        weights[f"h.{i}.{name}.bias"] = normal(columns)
    for name in ["ln_1", "ln_2"]:
        weights[f"h.{i}.{name}.weight"] = normal(DIM, mean=1.0)
        weights[f"h.{i}.{name}.bias"] = normal(DIM)
    # The causal mask, which old files hold as a buffer.
    weights[f"h.{i}.attn.bias"] = np.tril(np.ones((1, 1, CONTEXT, CONTEXT), np.uint8))
    weights[f"h.{i}.attn.masked_bias"] = np.array(-1e4, np.float32)
weights |= {"ln_f.weight": normal(DIM, mean=1.0), "ln_f.bias": normal(DIM)}
save_file(weights, "gpt2.safetensors", metadata={"format": "pt"})

w = {name: v.astype(np.float64) for name, v in weights.items()}


def norm(x, name):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[name + ".weight"] + w[name + ".bias"]


def conv1d(x, name):
    return x @ w[name + ".weight"] + w[name + ".bias"]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def attention(x, name):
    heads = lambda m: m.reshape(*m.shape[:-1], HEADS, DIM // HEADS).swapaxes(1, 2)  # [B, H, T, D/H]
    q, k, v = map(heads, np.split(conv1d(x, name + ".c_attn"), 3, axis=-1))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(DIM // HEADS)  # [B, H, T, T]
    scores = np.where(np.tril(np.ones(scores.shape)) > 0, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    y = (p / p.sum(-1, keepdims=True)) @ v
    return conv1d(y.swapaxes(1, 2).reshape(x.shape), name + ".c_proj")


tokens = random.integers(0, VOCAB, (2, CONTEXT))
x = w["wte.weight"][tokens] + w["wpe.weight"]
for i in range(LAYERS):
    x = x + attention(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn")
    x = x + conv1d(gelu(conv1d(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")), f"h.{i}.mlp.c_proj")
logits = norm(x, "ln_f") @ w["wte.weight"].T
with open("gpt2.json", "w") as f:
    json.dump({"tokens": tokens.flatten().tolist(), "logits": logits.flatten().tolist()}, f, indent=0)
