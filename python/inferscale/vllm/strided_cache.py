"""The addresses of vLLM's paged cache on a GPU, learnt and not assumed.

Versions and attention backends arrange a layer's cache in their own ways ([blocks, 2, slots, heads,
dim], [blocks, heads, slots, 2 dim], either of them with other strides). Rows that carry their own
index are written into a scratch cache of two blocks by the layer's own cache update; where they
land gives the strides of slots, heads and elements, and every element must agree with them.
"""

from typing import Any

import torch

# Numbers below this are exact in every cache type (bf16 has 8 bits).
DIGIT = 128


class StridedCache:
    """The caches of all layers, in order. `heads` KV heads of `dim` elements on this rank."""

    def __init__(self, layers: list[Any], caches: list[torch.Tensor], block_slots: int,
                 heads: int, dim: int, blocks: int) -> None:
        first = caches[0]
        if any(c.shape != first.shape or c.stride() != first.stride() or c.dtype != first.dtype
               for c in caches):
            raise NotImplementedError("the layers' caches differ in shape")
        self.layers, self.caches, self.blocks = layers, caches, blocks
        self.block_slots, self.heads, self.dim, self.dtype = block_slots, heads, dim, first.dtype
        self.block_axis = self._find_block_axis(layers[0], first)
        offsets = self._learn(layers[0], first)
        self.key_offset, self.key_strides = self._fit(offsets[0])
        self.value_offset, self.value_strides = self._fit(offsets[1])

    def _find_block_axis(self, layer: Any, cache: torch.Tensor) -> int:
        axes = [axis for axis, size in enumerate(cache.shape) if size == self.blocks]
        shape_of = getattr(getattr(layer, "attn_backend", None), "get_kv_cache_shape", None)
        if len(axes) != 1 and shape_of is not None:
            one, other = (shape_of(count, self.block_slots, self.heads, self.dim)
                          for count in (1009, 2003))
            axes = [axis for axis, size in enumerate(one) if size != other[axis]]
        if len(axes) != 1 or cache.shape[axes[0]] != self.blocks:
            raise NotImplementedError(f"no axis of {tuple(cache.shape)} counts {self.blocks} blocks")
        return axes[0]

    def _learn(self, layer: Any, cache: torch.Tensor) -> torch.Tensor:
        """[2 (keys, values), slots, heads, dim]: elements between a block's start and each place."""
        shape = (2, self.block_slots, self.heads, self.dim)
        count = 2 * self.block_slots * self.heads * self.dim
        index = torch.arange(count, device=cache.device).reshape(shape)
        # The scratch cache has two blocks and the same order of axes in memory.
        sizes = [2 if axis == self.block_axis else size for axis, size in enumerate(cache.shape)]
        order = sorted(range(cache.ndim), key=lambda axis: -cache.stride(axis))
        inverse = [order.index(axis) for axis in range(cache.ndim)]
        places = torch.zeros([1] * cache.ndim, dtype=torch.int64, device=cache.device)
        for axis, size in enumerate(sizes):
            if axis != self.block_axis:
                steps = torch.arange(size, device=cache.device) * cache.stride(axis)
                places = places + steps.reshape([-1 if a == axis else 1 for a in range(cache.ndim)])
        places = places.reshape(-1)
        found, written = torch.zeros_like(places), torch.ones_like(places, dtype=torch.bool)
        slots = torch.arange(self.block_slots, device=cache.device) + self.block_slots
        scale, rest = 1, index
        while True:
            scratch = torch.full([sizes[axis] for axis in order], -1, dtype=self.dtype,
                                 device=cache.device).permute(inverse)
            digit = (rest % DIGIT).to(self.dtype)
            layer.impl.do_kv_cache_update(layer, digit[0].contiguous(), digit[1].contiguous(),
                                          scratch, slots)
            if not bool((scratch.select(self.block_axis, 0) == -1).all()):
                raise NotImplementedError("a write into one block of the cache reaches another")
            block = scratch.select(self.block_axis, 1).reshape(-1)
            written &= block >= 0
            found += torch.where(block >= 0, block, 0).to(torch.int64) * scale
            rest, scale = rest // DIGIT, scale * DIGIT
            if not bool(rest.any()):
                break
        offsets = torch.full((count,), -1, dtype=torch.int64, device=cache.device)
        offsets[found[written]] = places[written]
        if int(written.sum()) != count or bool((offsets < 0).any()):
            raise NotImplementedError("the cache does not keep every element in a place of its own")
        return offsets.reshape(shape).cpu()

    def _fit(self, offsets: torch.Tensor) -> tuple[int, tuple[int, int, int, int]]:
        """Offset of the first element, and strides of block, slot, head, element; in elements."""
        start, strides = int(offsets[0, 0, 0]), []
        fitted = torch.full_like(offsets, start)
        for axis, size in enumerate(offsets.shape):
            step = int(offsets.select(axis, 1)[0, 0]) - start if size > 1 else 0
            strides.append(step)
            fitted += (torch.arange(size) * step).reshape([-1 if a == axis else 1 for a in range(3)])
        if not torch.equal(fitted, offsets):
            raise NotImplementedError("the cache is packed in a way that strides cannot describe")
        return start, (self.caches[0].stride(self.block_axis), *strides)

    def addresses(self) -> dict[str, Any]:
        """What the native worker takes, in bytes."""
        size = self.caches[0].element_size()
        return {
            "type": str(self.dtype).removeprefix("torch."),
            "keys": [cache.data_ptr() + self.key_offset * size for cache in self.caches],
            "values": [cache.data_ptr() + self.value_offset * size for cache in self.caches],
            "key_strides": tuple(stride * size for stride in self.key_strides),
            "value_strides": tuple(stride * size for stride in self.value_strides),
        }

    def read(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values in host memory, float32, [layers, tokens, heads, dim] each."""
        block = torch.div(slots, self.block_slots, rounding_mode="floor").to(self.caches[0].device)
        slot = (slots % self.block_slots).to(block.device)
        shape = (self.blocks, self.block_slots, self.heads, self.dim)
        out = []
        for offset, strides in ((self.key_offset, self.key_strides),
                                (self.value_offset, self.value_strides)):
            rows = [torch.as_strided(cache, shape, strides, cache.storage_offset() + offset)
                    [block, slot] for cache in self.caches]
            out.append(torch.stack(rows).to(torch.float32).cpu().contiguous())
        return out[0], out[1]
