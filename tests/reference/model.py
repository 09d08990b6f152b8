"""The whole GPT in NumPy, computed from the tensors of a state dict."""

import math

import numpy as np

from tests.reference.attention import attention, linear, unit_rms
from tests.reference.positions import sinusoidal

PRODUCTS = "attention.qkv", "attention.proj", "mlp.up", "mlp.down"


def layer_norm(x, gain, bias, eps=1e-5):
    """g * (x - mean) / sqrt(var + eps) + b, row by row (Ba et al., arXiv:1607.06450, eq. 3-4)."""
    out = np.empty_like(x)
    for t, row in enumerate(x):
        mean = sum(row) / len(row)
        variance = sum((value - mean) ** 2 for value in row) / len(row)
        out[t] = gain * (row - mean) / math.sqrt(variance + eps) + (0.0 if bias is None else bias)
    return out


def rms_norm(x, gain, eps=1e-5):
    """g * x / sqrt(mean(x^2) + eps), row by row (Zhang and Sennrich, arXiv:1910.07467, eq. 4)."""
    return np.array([gain * unit_rms(row, eps) for row in x])


def gelu(x):
    """x * Phi(x) = x/2 * (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel, arXiv:1606.08415, section 2)."""
    return np.vectorize(lambda value: 0.5 * value * (1 + math.erf(value / math.sqrt(2))))(x)


def relu2(x):
    """max(x, 0)^2 (So et al., Primer, arXiv:2109.08668, section 3)."""
    return np.vectorize(lambda value: value * value if value > 0 else 0.0)(x)


def mlp(x, up, down, activation, taps):
    """y = act(x W_1 + b_1) W_2 + b_2 (arXiv:1706.03762, eq. 2, with another non-linearity), then a convolution.

    `up` and `down` are (W, b), with b None where there is no bias. The convolution is y[t] + tap_1
    * y[t - 1] + tap_2 * y[t - 2] + ..., with 0 before the first place.
    """
    y = linear({"gelu": gelu, "relu2": relu2}[activation](linear(x, *up)), *down)
    out = y.copy()
    for t in range(len(y)):
        out[t] += sum(tap * y[t - 1 - j] for j, tap in enumerate(taps) if j < t)
    return out


def gpt(state, config, tokens, window=None, seen=None, eps=2.0**-52):
    """Logits (batch, time, vocabulary) for tokens (batch, time), from the tensors of a state dict by name.

    h_0 = E[token] (+ s * E[token before], token shift: RWKV, arXiv:2305.13048) (+ P[time], learned
    positions, or the table of sinusoidal ones over sqrt(dim): arXiv:1706.03762, sections 3.5 and
    3.4, with all divided by that root); h = h + attention(norm(h)), h = h + mlp(norm(h)) for each
    block (pre-norm: Radford et al. 2019, section 2.3); logits = norm(h) W^T, W = E when tied. `eps`
    is that of torch in float64; a list `seen` collects the shares of attention, see `head`.
    """
    arrays = {name: np.asarray(tensor, dtype=np.float64) for name, tensor in state.items()}

    def both(name):
        return arrays[f"{name}.weight"], arrays[f"{name}.bias"] if config.bias else None

    def norm(name, x):
        if config.norm == "rmsnorm":
            return rms_norm(x, arrays[f"{name}.weight"])
        return layer_norm(x, *both(name))

    rows = []
    for row in tokens:
        x = arrays["embedding.weight"][row]
        if config.token_shift:
            x[1:] = x[1:] + arrays["shift"] * x[:-1]
        if config.positions == "learned":
            x = x + arrays["position_embedding.weight"][: len(row)]
        if config.positions == "sinusoidal":
            x = x + sinusoidal(len(row), config.dim) / math.sqrt(config.dim)
        for i in range(config.layers):
            block = f"blocks.{i}"
            taps = [arrays[f"{block}.mlp.taps.{tap}"] for tap in range(config.conv_taps - 1)]
            qkv, proj, up, down = (both(f"{block}.{part}") for part in PRODUCTS)
            normed = norm(f"{block}.norm1", x)
            x = x + attention(normed, qkv, proj, config, window or config.window, seen, eps)
            x = x + mlp(norm(f"{block}.norm2", x), up, down, config.activation, taps)
        head = arrays["embedding.weight" if config.tied else "head.weight"]
        rows.append(norm("norm", x) @ head.T)
    return np.array(rows)


def text(state, config, tokens, **options):
    """The window rule of gpt/inference/decoder.py: how a text of any length is read.

    Where places have embeddings of their own, a text begins anew with its last half whenever the
    context is full; otherwise it is one forward pass in which attention sees as many places as the
    context has.

    Returns:
        Logits (T, V) after each token, where the last window begins, and the shares of attention
        in it, see `head`.
    """
    logits = []
    start = 0
    length = config.context if config.positions in ("learned", "sinusoidal") else len(tokens)
    span = min(config.window or config.context, config.context)
    while True:
        seen = []
        window = np.array([tokens[start : start + length]])
        logits.extend(gpt(state, config, window, span, seen, **options)[0][len(logits) - start :])
        if len(logits) == len(tokens):
            return np.array(logits), start, seen
        start = len(logits) - config.context // 2
