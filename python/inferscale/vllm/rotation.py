"""The frequencies of vLLM's own rotary embedding.

A probe on a 16-bit cache measures them to the cache's rounding only, which is too coarse for long
contexts. vLLM has them in float32; the probe then checks them.
"""

import math

import torch

# Those whose rotation is one table for every request, whatever its length.
PLAIN = {"RotaryEmbedding", "Llama3RotaryEmbedding", "LinearScalingRotaryEmbedding",
         "NTKScalingRotaryEmbedding", "YaRNScalingRotaryEmbedding"}

MOST_ROTATIONS = 8


def engine_rotation() -> tuple[str, list[list[float]]] | None:
    """(pairing, radians a position of each pair; of every rotary embedding that this process has made).

    A model may turn its layers in several ways, such as those with a window faster than the others; a
    probe tells whose is whose. None where one of them is no plain table, or another shape.
    """
    try:
        from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT
    except ImportError:
        return None
    found: list[list[float]] = []
    pairings = set()
    for rope in _ROPE_DICT.values():
        if type(rope).__name__ not in PLAIN:
            return None
        with torch.device("cpu"):
            table = rope._compute_cos_sin_cache().double().cpu()
        one = frequencies(table)
        if one not in found:
            found.append(one)
        pairings.add("half" if rope.is_neox_style else "interleaved")
    if len(pairings) != 1 or len({len(one) for one in found}) != 1 or len(found) > MOST_ROTATIONS:
        return None
    return pairings.pop(), found


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
