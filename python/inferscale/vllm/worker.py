"""The worker's side: carries a step's plan out on the engine's cache."""

import re
from typing import Any

import torch

from inferscale import _native
from inferscale.vllm.packed_cache import PackedCache
from inferscale.vllm.rotation import engine_rotation
from inferscale.vllm.settings import (
    differing_layers,
    engine_suffix,
    fingerprint_of,
    refusal_of,
    Settings,
    SettingsError,
    specs_of,
)
from inferscale.vllm.strided_cache import StridedCache

LAYER_NUMBER = re.compile(r"\.(\d+)\.")
# Left to vLLM beside the arena: CUDA graphs, whose memory it may not have counted yet.
GPU_RESERVE_BYTES = 512 << 20
# The engine's stream. torch.cuda.current_stream() makes an object of it, which takes longer than the
# kernel's launch; the other way is not in torch's documented interface.
raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream",
                     lambda ordinal: torch.cuda.current_stream(ordinal).cuda_stream)


class WorkerSide:
    devices = ("cuda",)  # where the native worker reaches the cache itself

    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
        self.config, self.cache_config, self.settings = vllm_config, kv_cache_config, settings
        self.refusal = refusal_of(vllm_config, kv_cache_config)
        self.native: Any = None
        self.cache: PackedCache | StridedCache | None = None
        self.on_device = self.on_cuda = False
        self.began = False  # a plan that has captures or a probe
        self.ordinal = 0

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if self.refusal:
            return
        spec = specs_of(self.cache_config.kv_cache_groups[0])[0]
        names = sorted(kv_caches, key=lambda name: int(LAYER_NUMBER.search(name)[1]))
        context = self.config.compilation_config.static_forward_context
        layers, caches = [context[name] for name in names], [kv_caches[name] for name in names]
        device = caches[0].device
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        rank = get_tensor_model_parallel_rank()
        # Two engines' stores in one folder would not learn of each other's erasures.
        folder = (f"{self.settings.folder}/rank-{rank}{engine_suffix(self.config.parallel_config)}"
                  if self.settings.folder else "")
        # First: also if the cache is refused, the scheduler hears why, and files are erased.
        self.native = _native.Worker(
            layers=len(names),
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_size,
            codec=self.settings.codec,
            fingerprint=fingerprint_of(self.config),
            folder=folder,
            # The scheduler evicts by its own account, of the files if there are any; the store must
            # never be the first to do so. Headers and the catalogue of a block are not in it.
            host_budget_bytes=self.settings.host_bytes * 5 // 4,
            file_budget_bytes=self.settings.file_bytes * 5 // 4,
            block_slots=spec.block_size,
            engine_blocks=self.cache_config.num_blocks,
            max_position=self.config.model_config.max_model_len,
            rank=rank,
        )
        if any(getattr(layer, "kv_sharing_target_layer_name", None) for layer in layers):
            # Their caches are others' under names of their own, which no scheduler counts.
            self.refuse("the model has layers that use the KV of others")
            return
        if differ := differing_layers(self.cache_config):
            self.refuse(differ)
            return
        shape = (spec.block_size, spec.num_kv_heads, spec.head_size)
        if device.type in self.devices:
            self.cache = StridedCache(layers, caches, *shape, self.cache_config.num_blocks)
            self._attach(device)
            self.on_device, self.on_cuda = True, device.type == "cuda"
        elif device.type == "cpu":
            self.cache = PackedCache(layers, caches, *shape)
        else:
            self.refuse(f"no injection into a cache on {device.type}")
            return
        # A cache of float32 measures as well as the engine computes.
        rotation = engine_rotation() if self.cache.dtype != torch.float32 else None
        if rotation is not None:
            self.native.expect_rotation(pairing=rotation[0], layers=len(names),
                                        inverse_frequencies=rotation[1])

    def _attach(self, device: torch.device) -> None:
        """Allocates the arena. Raises SettingsError if the GPU has too little left."""
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            missing = self.settings.gpu_bytes + GPU_RESERVE_BYTES - free
            if missing > 0:
                now = self.config.cache_config.gpu_memory_utilization
                most = max(0, int((now - missing / total) * 100) / 100)
                raise SettingsError(
                    f"the GPU has {free >> 20} MiB left beside vLLM's cache; gpu_bytes needs "
                    f"{self.settings.gpu_bytes >> 20} MiB and vLLM {GPU_RESERVE_BYTES >> 20} MiB: start "
                    f"with --gpu-memory-utilization {most:.2f} or less, or with smaller gpu_bytes")
        self.ordinal = device.index or 0
        self.native.attach_device(ordinal=self.ordinal if device.type == "cuda" else -1,
                                  arena_bytes=self.settings.gpu_bytes,
                                  pinned_bytes=self.settings.pinned_bytes, **self.cache.addresses())

    def _stream(self) -> int:
        return raw_stream(self.ordinal) if self.on_cuda else 0

    def start_load(self, plan: Any) -> None:
        """`plan`: a native StepPlan, or None. Raises if any of its loads may not have been written."""
        self.began = False
        if self.native is None or plan is None:
            return
        self.began = self.native.begin(plan)
        if self.on_device:
            self.native.load_on_device(self._stream())
            return
        slots = self.native.load_slots()
        if slots:
            keys, values = self.cache.staging(len(slots))
            self.native.load(*self._address(keys, values))
            self.cache.write(torch.tensor(slots, dtype=torch.int64), keys, values)

    def save(self) -> None:
        if not self.began or self.refusal:  # what the plan was to store is reported as lost
            return
        self.began = False
        self._move(self.native.probe_slots(), self.native.probe)
        if self.on_device:
            self.native.capture_on_device(self._stream())
        else:
            self._move(self.native.capture_slots(), self.native.capture)

    def _move(self, slots: list[int], take: Any) -> None:
        if slots:
            keys, values = self.cache.read(torch.tensor(slots, dtype=torch.int64))
            take(*self._address(keys, values))

    def _address(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[str, int, int, int]:
        kind = str(keys.dtype).removeprefix("torch.")
        return kind, keys.data_ptr(), values.data_ptr(), keys.shape[1]

    def failed_blocks(self) -> set[int]:
        return set(self.native.take_failed_blocks()) if self.native is not None else set()

    def report(self) -> bytes:
        return self.native.take_report() if self.native is not None else b""

    def close(self) -> None:
        """What has been captured reaches host memory and files."""
        if self.native is not None:
            self.native.flush()

    def refuse(self, reason: str) -> None:
        self.refusal = reason
        if self.native is not None:
            self.native.refuse(reason)
