"""Reading and writing vLLM's paged cache without knowing how an engine packs it.

Writing goes through the layer's own cache update. Reading goes through the permutation that this
update is seen to make: rows that carry their own index are written into a copy of two blocks, and
where each element lands is where it is read from later. The CPU cache is packed by instruction set;
nothing is assumed about it.
"""

from typing import Any

import torch

# Numbers below this are exact in every cache type (bf16 has 8 bits).
DIGIT = 128


class PackedCache:
    """The caches of all layers, in order. `heads` KV heads of `dim` elements on this rank."""

    def __init__(self, layers: list[Any], caches: list[torch.Tensor], block_slots: int,
                 heads: int, dim: int) -> None:
        first = caches[0]
        if any(c.shape != first.shape or c.stride() != first.stride() or c.dtype != first.dtype
               for c in caches) or not first.is_contiguous():
            raise NotImplementedError("the layers' caches differ in shape, or are not contiguous")
        self.layers, self.caches = layers, caches
        self.block_slots, self.heads, self.dim = block_slots, heads, dim
        self.dtype, self.blocks = first.dtype, first.shape[0]
        self.block_elements = first[0].numel()
        self.offsets = self._learn(layers[0], first)

    def _update(self, layer: Any, cache: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
                slots: torch.Tensor) -> None:
        layer.impl.do_kv_cache_update(layer, keys, values, cache, slots)

    def _learn(self, layer: Any, cache: torch.Tensor) -> torch.Tensor:
        """[2 (keys, values), slots, heads, dim]: place of each element inside its block."""
        count = 2 * self.block_slots * self.heads * self.dim
        shape = (2, self.block_slots, self.heads, self.dim)
        index = torch.arange(count, dtype=torch.int64).reshape(shape)
        scratch_blocks = 2
        found = torch.zeros(self.block_elements, dtype=torch.int64)
        written = torch.ones(self.block_elements, dtype=torch.bool)
        scale, rest = 1, index
        while True:
            scratch = torch.full((scratch_blocks, *cache.shape[1:]), -1, dtype=self.dtype)
            # The second block: its own place must not matter, or the layout is not by blocks.
            slots = torch.arange(self.block_slots, dtype=torch.int64) + self.block_slots
            digit = (rest % DIGIT).to(self.dtype)
            self._update(layer, scratch, digit[0].contiguous(), digit[1].contiguous(), slots)
            block = scratch[1].reshape(-1)
            if not bool((scratch[0] == -1).all()):
                raise NotImplementedError("a write into one block of the cache reaches another")
            written &= block >= 0
            found += torch.where(block >= 0, block, 0).to(torch.int64) * scale
            rest, scale = rest // DIGIT, scale * DIGIT
            if not bool(rest.any()):
                break
        offsets = torch.full((count,), -1, dtype=torch.int64)
        places = torch.arange(self.block_elements, dtype=torch.int64)
        offsets[found[written]] = places[written]
        if int(written.sum()) != count or bool((offsets < 0).any()):
            raise NotImplementedError("the cache does not keep every element in a place of its own")
        return offsets.reshape(shape)

    def staging(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, [layers, tokens, heads, dim] each."""
        shape = (len(self.layers), tokens, self.heads, self.dim)
        return torch.empty(shape, dtype=self.dtype), torch.empty(shape, dtype=self.dtype)

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        for number, layer in enumerate(self.layers):
            self._update(layer, self.caches[number], keys[number], values[number], slots)

    def read(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        block = torch.div(slots, self.block_slots, rounding_mode="floor")
        places = self.offsets[:, slots % self.block_slots] + (block * self.block_elements).reshape(
            1, -1, 1, 1
        )
        keys, values = self.staging(len(slots))
        for number, cache in enumerate(self.caches):
            flat = cache.reshape(-1)
            torch.index_select(flat, 0, places[0].reshape(-1), out=keys[number].reshape(-1))
            torch.index_select(flat, 0, places[1].reshape(-1), out=values[number].reshape(-1))
        return keys, values
