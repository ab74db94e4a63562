"""The frequencies of vLLM's own rotary embedding.

A probe on a 16-bit cache measures them to the cache's rounding only, which is too coarse for long
contexts. vLLM has them in float32; the probe then checks them.
"""

import math

import torch

# Those whose rotation is one table for every request, whatever its length.
PLAIN = {"RotaryEmbedding", "Llama3RotaryEmbedding", "LinearScalingRotaryEmbedding",
         "NTKScalingRotaryEmbedding", "YaRNScalingRotaryEmbedding"}


def engine_rotation() -> tuple[str, list[float]] | None:
    """(pairing, radians a position of each pair), or None where the model has no single plain one."""
    try:
        from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT
    except ImportError:
        return None
    ropes = list(_ROPE_DICT.values())
    if len(ropes) != 1 or type(ropes[0]).__name__ not in PLAIN:
        return None
    rope = ropes[0]
    with torch.device("cpu"):
        table = rope._compute_cos_sin_cache().double().cpu()
    pairing = "half" if rope.is_neox_style else "interleaved"
    return pairing, frequencies(table)


def frequencies(table: torch.Tensor) -> list[float]:
    """From [positions, pairs cosines, then pairs sines].

    A magnitude that YaRN puts into both drops out of the angle. Distances grow four times at most,
    so the frequency known so far tells how often the next angle has gone round.
    """
    pairs = table.shape[1] // 2
    cosines, sines = table[:, :pairs], table[:, pairs:]
    position, known = 1, torch.atan2(sines[1], cosines[1])
    while position * 4 < len(table):
        position *= 4
        angle = torch.atan2(sines[position], cosines[position])
        rounds = torch.round((known * position - angle) / (2 * math.pi))
        known = (angle + 2 * math.pi * rounds) / position
    return known.tolist()
