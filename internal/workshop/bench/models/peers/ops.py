# The operations of ops.go, by their names there.
import torch
import torch.nn.functional as F

from peer import JOB, answer, buckets, floats, ints, lower

BUCKETS = buckets(512, False)
ANGLES = torch.outer(torch.arange(512), 10000 ** (-torch.arange(0, 64, 2) / 64))[:, None]
COS, SIN = (lower(f(ANGLES.repeat(1, 1, 2))) for f in (torch.cos, torch.sin))
TURN = torch.polar(torch.ones_like(ANGLES), ANGLES)


def rope(x):
    """As transformers does it."""
    x = x.unflatten(-1, (-1, 64))
    u, v = x.chunk(2, -1)
    return (x * COS + torch.cat((-v, u), -1) * SIN).flatten(2)


def interleaved(x):
    """As Llama's own code does it."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 32, 2)))
    return torch.view_as_real(pairs * TURN).flatten(2).to(x.dtype)


def heads(x):
    return x.unflatten(-1, (-1, 64)).transpose(1, 2)


def attend(q, k, v, **more):
    return F.scaled_dot_product_attention(heads(q), heads(k), heads(v), **more).transpose(1, 2).flatten(2)


def biased(q, k, v, bias):
    scores = heads(q) @ (heads(k) / 8).transpose(2, 3) + bias.to(q.dtype)
    return (scores.softmax(-1) @ heads(v)).transpose(1, 2).flatten(2)


WINDOW = torch.ones(512, 512, dtype=torch.bool).tril().triu(-127)
OPS = {
    "Linear": F.linear,
    "AddLinear": lambda y, x, w: torch.addmm(y, x, w.t()),
    "Embedding": lambda table, index: F.embedding(index, table),
    "AddPositions": torch.add,
    "Rope": rope,
    "Rope, interleaved": interleaved,
    "RelativeBias": lambda table: F.embedding(BUCKETS, table).permute(2, 0, 1).contiguous(),
    "SDPA": attend,
    "SDPA, causal": lambda q, k, v: attend(q, k, v, is_causal=True),
    "SDPA, causal, 2 heads of keys": lambda q, k, v: attend(q, k, v, is_causal=True, enable_gqa=True),
    "SDPA, window of 128": lambda q, k, v: attend(q, k, v, attn_mask=WINDOW),
    "SDPA, mask": lambda q, k, v, mask: attend(q, k, v, attn_mask=mask[:, None, None].bool()),
    "SDPA, bias": lambda q, k, v, bias: attend(q, k, v, attn_mask=bias.to(q.dtype)),
    "SDPA, bias, written out": biased,
    "SelfAttention, causal": lambda qkv: attend(*qkv.chunk(3, -1), is_causal=True),
    "LayerNorm": lambda x, g, b: F.layer_norm(x, (512,), g, b),
    "RMSNorm": lambda x, g: F.rms_norm(x, (512,), g.to(x.dtype), 1e-5),
    "RMSNorm, written out": lambda x, g: g.to(x.dtype) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)),
    "GroupNorm, 32 groups": lambda x, g, b: F.group_norm(x, 32, g, b),
    "BatchNorm": lambda x, g, b, mean, var: F.batch_norm(x, mean, var, g, b, training=True),
    "BatchNorm of rows": lambda x, g, b, mean, var: F.batch_norm(x, mean, var, g, b, training=True),
    "Conv2D 3x3 to 64": lambda x, w, b: F.conv2d(x, w, b, padding=1),
    "Conv2D 3x3 to 256": lambda x, w, b: F.conv2d(x, w, b, padding=1),
    "Conv2D 1x1 to 256": F.conv2d,
    "Conv2D 7x7 to 64, stride 2": lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=3),
    "Conv2D 3x3, depthwise": lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=64),
    "MaxPool2D 3x3, stride 2": lambda x: F.max_pool2d(x, 3, 2, 1),
    "MaxPool2D 2x2": lambda x: F.max_pool2d(x, 2),
    "AvgPool2D 2x2": lambda x: F.avg_pool2d(x, 2),
    "AvgPool2D 7x7": lambda x: F.avg_pool2d(x, 7),
    "ReLU": F.relu,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "GELU": F.gelu,
    "GELUTanh": lambda x: F.gelu(x, approximate="tanh"),
    "SiLU": F.silu,
    "GLU": lambda gate, up: torch.sigmoid(gate) * up,
    "SwiGLU": lambda gate, up: F.silu(gate) * up,
    "SwiGLU, joined": lambda x: F.silu(x[..., :2048]) * x[..., 2048:],
    "GEGLU": lambda gate, up: F.gelu(gate) * up,
    "GEGLUTanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "ReGLU": lambda gate, up: F.relu(gate) * up,
    "Scale": lambda x: x * 0.125,
    "Columns": lambda x: x[..., 512:1024].contiguous(),
    "Dropout": lambda x: F.dropout(x, 0.1),
    "Softmax of 128": lambda x: F.softmax(x, -1),
    "Softmax of 2048": lambda x: F.softmax(x, -1),
    "LogSoftmax of 128": lambda x: F.log_softmax(x, -1),
    "LogSoftmax of 2048": lambda x: F.log_softmax(x, -1),
    "CrossEntropy": F.cross_entropy,
    "SmoothCrossEntropy": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "LinearCrossEntropy": lambda x, w, y: F.cross_entropy(F.linear(x, w), y),
    "MSE": F.mse_loss,
    "BCE": F.binary_cross_entropy_with_logits,
}


def numbers(i, shape, below=0, full=False):
    """Returns what the function of that name in unit.go does, laid out as the variant says."""
    x = ints(below, *shape, start=7919 * i) if below else floats(*shape, start=7919 * i)
    x = x if full else lower(x)
    return x.contiguous(memory_format=torch.channels_last) if JOB["Variant"] == "channels last" and x.dim() == 4 else x


name = JOB["Contest"].removeprefix("op/")
op = OPS.get(f"{name}, {JOB['Variant']}", OPS[name])
inputs = [
    numbers(i, v["Shape"], v["Below"], v["Full"]).requires_grad_(not v["Fixed"]) for i, v in enumerate(JOB["Inputs"])
]
leaves = [x for x in inputs if x.requires_grad]
y = op(*inputs)
gradient = numbers(len(inputs), y.shape or (1,), full=y.dtype == torch.float32).view(y.shape)
norm = lambda list: torch.nn.utils.get_total_norm([x.detach().double() for x in list]).item()
answer(
    lambda: op(*inputs),
    lambda y: torch.autograd.grad(y, leaves, gradient),
    lambda y, grads: (norm([y]), norm(grads)),
)
