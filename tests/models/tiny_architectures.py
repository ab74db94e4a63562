"""The tensors of each architecture of the generated test models, with random weights.

Names, shapes and order of axes are those that llama.cpp expects: a matrix is [outputs, inputs].
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tiny_tokenizer import CHATML_TEMPLATE, TinyTokenizer

Tensors = Iterator[tuple[str, np.ndarray]]

# Queries and keys have this standard deviation, so attention scores have its square.
QUERY_KEY_GAIN = 1.4
LOGIT_GAIN = 3.0


@dataclass(frozen=True)
class TinyModel:
    """One model: its sizes, what is special about its positions, and what is expected of it."""

    name: str
    architecture: str
    tensors: Callable[["TinyModel", TinyTokenizer], Tensors]
    reason: str
    expect: str = "exact"
    layers: int = 4
    embedding: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    feed_forward: int = 192
    context: int = 8192
    # Metadata below the architecture's prefix; Python's int, float, str and list[int] are stored
    # as u32, f32, string and i32 array.
    metadata: dict = field(default_factory=dict)
    template: str | None = CHATML_TEMPLATE
    add_bos: bool = False
    user_defined_tokens: tuple[str, ...] = ()
    any_bytes: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


class Weights:
    """Random tensors of one model, each from a seed of its own."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name

    def _normal(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        digest = hashlib.sha256(f"{self._model_name}/{name}".encode()).digest()
        # RandomState's stream is frozen across numpy versions; Generator's is not.
        random = np.random.RandomState(int.from_bytes(digest[:4], "little"))
        return random.standard_normal(shape)

    def matrix(self, name: str, outputs: int, inputs: int, gain: float = 1.0) -> np.ndarray:
        """[outputs, inputs]: inputs of unit variance give outputs of standard deviation `gain`."""
        return (self._normal(name, (outputs, inputs)) * (gain / math.sqrt(inputs))).astype("<f4")

    def vector(self, name: str, size: int, mean: float = 0.0, spread: float = 0.1) -> np.ndarray:
        return (mean + spread * self._normal(name, (size,))).astype("<f4")


def norm_tensors(
    weights: Weights, name: str, size: int, bias: bool = False, gain: float = 1.0
) -> Tensors:
    yield f"{name}.weight", weights.vector(f"{name}.weight", size, gain, 0.1 * gain)
    if bias:
        yield f"{name}.bias", weights.vector(f"{name}.bias", size)


def embedding_tensors(
    model: TinyModel, tokenizer: TinyTokenizer, norm_bias: bool = False, scale: float = 1.0
) -> Tensors:
    """Token embeddings of standard deviation `scale`, the last norm and the output matrix.

    The output matrix is not tied to the embeddings: random tied ones repeat the last token.
    """
    weights = Weights(model.name)
    vocabulary = len(tokenizer.tokens)
    gain = scale * math.sqrt(model.embedding)
    yield (
        "token_embd.weight",
        weights.matrix("token_embd.weight", vocabulary, model.embedding, gain),
    )
    yield from norm_tensors(weights, "output_norm", model.embedding, norm_bias)
    output = weights.matrix("output.weight", vocabulary, model.embedding, LOGIT_GAIN)
    for token_id in range(vocabulary):
        special = token_id >= tokenizer.first_special
        if special or not (model.any_bytes or tokenizer.is_plain_text(token_id)):
            output[token_id] = 0
    yield "output.weight", output


def attention_tensors(model: TinyModel, layer: int) -> Tensors:
    weights = Weights(model.name)
    prefix = f"blk.{layer}"
    projections = (
        ("attn_q", model.query_width, QUERY_KEY_GAIN),
        ("attn_k", model.kv_width, QUERY_KEY_GAIN),
        ("attn_v", model.kv_width, 1.0),
    )
    for name, width, gain in projections:
        full = f"{prefix}.{name}"
        yield f"{full}.weight", weights.matrix(f"{full}.weight", width, model.embedding, gain)
        if model.qkv_bias:
            yield f"{full}.bias", weights.vector(f"{full}.bias", width, spread=0.5)
    if model.qk_norm:
        for name in ("attn_q_norm", "attn_k_norm"):
            yield from norm_tensors(
                weights, f"{prefix}.{name}", model.head_dim, gain=QUERY_KEY_GAIN
            )
    output = f"{prefix}.attn_output.weight"
    yield output, weights.matrix(output, model.embedding, model.query_width)


def gated_feed_forward_tensors(model: TinyModel, layer: int) -> Tensors:
    weights = Weights(model.name)
    for name in ("ffn_gate", "ffn_up"):
        full = f"blk.{layer}.{name}.weight"
        yield full, weights.matrix(full, model.feed_forward, model.embedding)
    down = f"blk.{layer}.ffn_down.weight"
    yield down, weights.matrix(down, model.embedding, model.feed_forward, 1.5)


def decoder_tensors(model: TinyModel, tokenizer: TinyTokenizer) -> Tensors:
    """The Llama layout, which Qwen2, Qwen3, Qwen2-VL and SmolLM3 share."""
    weights = Weights(model.name)
    yield from embedding_tensors(model, tokenizer)
    for layer in range(model.layers):
        yield from norm_tensors(weights, f"blk.{layer}.attn_norm", model.embedding)
        yield from attention_tensors(model, layer)
        yield from norm_tensors(weights, f"blk.{layer}.ffn_norm", model.embedding)
        yield from gated_feed_forward_tensors(model, layer)


def llama3_tensors(model: TinyModel, tokenizer: TinyTokenizer) -> Tensors:
    yield from decoder_tensors(model, tokenizer)
    yield (
        "rope_freqs.weight",
        llama3_frequency_factors(
            model.head_dim, model.metadata["rope.freq_base"], original_context=8192
        ),
    )


def llama3_frequency_factors(
    head_dim: int,
    base: float,
    original_context: int,
    factor: float = 8.0,
    low_frequency_factor: float = 1.0,
    high_frequency_factor: float = 4.0,
) -> np.ndarray:
    """[head_dim / 2] divisors of the frequencies, as Llama 3.1 defines them."""
    factors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * base ** (2 * pair / head_dim)
        if wavelength < original_context / high_frequency_factor:
            factors.append(1.0)
        elif wavelength > original_context / low_frequency_factor:
            factors.append(factor)
        else:
            smooth = (original_context / wavelength - low_frequency_factor) / (
                high_frequency_factor - low_frequency_factor
            )
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype="<f4")


def gemma3_tensors(model: TinyModel, tokenizer: TinyTokenizer) -> Tensors:
    weights = Weights(model.name)
    # The engine multiplies Gemma's embeddings by sqrt(embedding).
    yield from embedding_tensors(model, tokenizer, scale=1 / math.sqrt(model.embedding))
    for layer in range(model.layers):
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            yield from norm_tensors(weights, f"blk.{layer}.{name}", model.embedding)
        yield from attention_tensors(model, layer)
        yield from gated_feed_forward_tensors(model, layer)


def stablelm_tensors(model: TinyModel, tokenizer: TinyTokenizer) -> Tensors:
    weights = Weights(model.name)
    yield from embedding_tensors(model, tokenizer, norm_bias=True)
    for layer in range(model.layers):
        yield from norm_tensors(weights, f"blk.{layer}.attn_norm", model.embedding, bias=True)
        yield from attention_tensors(model, layer)
        yield from norm_tensors(weights, f"blk.{layer}.ffn_norm", model.embedding, bias=True)
        yield from gated_feed_forward_tensors(model, layer)


def fused_qkv(model: TinyModel, layer: int) -> np.ndarray:
    parts = dict(attention_tensors(model, layer))
    return np.concatenate([parts[f"blk.{layer}.attn_{part}.weight"] for part in "qkv"])


def phi3_tensors(model: TinyModel, tokenizer: TinyTokenizer) -> Tensors:
    weights = Weights(model.name)
    yield from embedding_tensors(model, tokenizer)
    pairs = model.head_dim // 2
    yield "rope_factors_short.weight", np.linspace(1.0, 1.5, pairs).astype("<f4")
    yield "rope_factors_long.weight", np.geomspace(1.0, 32.0, pairs).astype("<f4")
    for layer in range(model.layers):
        prefix = f"blk.{layer}"
        yield from norm_tensors(weights, f"{prefix}.attn_norm", model.embedding)
        yield f"{prefix}.attn_qkv.weight", fused_qkv(model, layer)
        output = f"{prefix}.attn_output.weight"
        yield output, weights.matrix(output, model.embedding, model.query_width)
        yield from norm_tensors(weights, f"{prefix}.ffn_norm", model.embedding)
        up = f"{prefix}.ffn_up.weight"
        yield up, weights.matrix(up, 2 * model.feed_forward, model.embedding)
        down = f"{prefix}.ffn_down.weight"
        yield down, weights.matrix(down, model.embedding, model.feed_forward, 1.5)


def gpt2_tensors(model: TinyModel, tokenizer: TinyTokenizer) -> Tensors:
    weights = Weights(model.name)
    yield from embedding_tensors(model, tokenizer, norm_bias=True)
    position = "position_embd.weight"
    yield (
        position,
        weights.matrix(position, model.context, model.embedding, 0.5 * math.sqrt(model.embedding)),
    )
    for layer in range(model.layers):
        prefix = f"blk.{layer}"
        yield from norm_tensors(weights, f"{prefix}.attn_norm", model.embedding, bias=True)
        yield from norm_tensors(weights, f"{prefix}.ffn_norm", model.embedding, bias=True)
        matrices = {
            "attn_qkv": fused_qkv(model, layer),
            "attn_output": weights.matrix(
                f"{prefix}.attn_output.weight", model.embedding, model.query_width
            ),
            "ffn_up": weights.matrix(
                f"{prefix}.ffn_up.weight", model.feed_forward, model.embedding
            ),
            "ffn_down": weights.matrix(
                f"{prefix}.ffn_down.weight", model.embedding, model.feed_forward, 1.5
            ),
        }
        for name, matrix in matrices.items():
            yield f"{prefix}.{name}.weight", matrix
            bias = f"{prefix}.{name}.bias"
            yield bias, weights.vector(bias, matrix.shape[0])


def mamba_tensors(model: TinyModel, tokenizer: TinyTokenizer) -> Tensors:
    weights = Weights(model.name)
    inner = model.metadata["ssm.inner_size"]
    state = model.metadata["ssm.state_size"]
    rank = model.metadata["ssm.time_step_rank"]
    kernel = model.metadata["ssm.conv_kernel"]
    yield from embedding_tensors(model, tokenizer)
    for layer in range(model.layers):
        prefix = f"blk.{layer}"
        yield from norm_tensors(weights, f"{prefix}.attn_norm", model.embedding)
        matrices = {
            "ssm_in": (2 * inner, model.embedding),
            "ssm_conv1d": (inner, kernel),
            "ssm_x": (rank + 2 * state, inner),
            "ssm_dt": (inner, rank),
            "ssm_out": (model.embedding, inner),
        }
        for name, (outputs, inputs) in matrices.items():
            full = f"{prefix}.{name}.weight"
            yield full, weights.matrix(full, outputs, inputs)
        yield f"{prefix}.ssm_conv1d.bias", weights.vector(f"{prefix}.ssm_conv1d.bias", inner)
        # softplus(-1) = 0.31: the state forgets over a few to some tens of tokens.
        yield f"{prefix}.ssm_dt.bias", weights.vector(f"{prefix}.ssm_dt.bias", inner, -1.0)
        decay = -np.arange(1, state + 1) / state
        yield f"{prefix}.ssm_a", np.tile(decay, (inner, 1)).astype("<f4")
        yield f"{prefix}.ssm_d", weights.vector(f"{prefix}.ssm_d", inner, 1.0)
