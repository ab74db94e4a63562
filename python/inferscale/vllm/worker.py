"""The worker's side: carries a step's plan out on the engine's cache."""

import re
from typing import Any

import torch

from inferscale import _native
from inferscale.vllm.packed_cache import PackedCache
from inferscale.vllm.settings import Settings, fingerprint_of, refusal_of

LAYER_NUMBER = re.compile(r"\.(\d+)\.")


class WorkerSide:
    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
        self.config, self.cache_config, self.settings = vllm_config, kv_cache_config, settings
        self.refusal = refusal_of(vllm_config, kv_cache_config)
        self.native: Any = None
        self.cache: PackedCache | None = None
        self.began = False

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if self.refusal:
            return
        if next(iter(kv_caches.values())).device.type != "cpu":
            self.refusal = "injection on a GPU needs the CUDA kernels, which this build does not have"
            return
        spec = self.cache_config.kv_cache_groups[0].kv_cache_spec
        names = sorted(kv_caches, key=lambda name: int(LAYER_NUMBER.search(name)[1]))
        context = self.config.compilation_config.static_forward_context
        self.cache = PackedCache([context[name] for name in names],
                                 [kv_caches[name] for name in names],
                                 spec.block_size, spec.num_kv_heads, spec.head_size)
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        rank = get_tensor_model_parallel_rank()
        folder = f"{self.settings.folder}/rank-{rank}" if self.settings.folder else ""
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
            engine_blocks=self.cache.blocks,
            max_position=self.config.model_config.max_model_len,
            rank=rank,
        )

    def start_load(self, plan: bytes) -> None:
        """Raises if any load of the plan may not have been written."""
        self.began = False
        if self.native is None or not plan:
            return
        self.native.begin(plan)
        self.began = True
        slots = self.native.load_slots()
        if slots:
            keys, values = self.cache.staging(len(slots))
            self.native.load(*self._address(keys, values))
            self.cache.write(torch.tensor(slots, dtype=torch.int64), keys, values)

    def save(self) -> None:
        if not self.began:
            return
        self.began = False
        for slots, take in ((self.native.probe_slots(), self.native.probe),
                            (self.native.capture_slots(), self.native.capture)):
            if slots:
                keys, values = self.cache.read(torch.tensor(slots, dtype=torch.int64))
                take(*self._address(keys, values))

    def _address(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[str, int, int, int]:
        kind = str(self.cache.dtype).removeprefix("torch.")
        return kind, keys.data_ptr(), values.data_ptr(), keys.shape[1]

    def failed_blocks(self) -> set[int]:
        return set(self.native.take_failed_blocks()) if self.native is not None else set()

    def report(self) -> bytes:
        return self.native.take_report() if self.native is not None else b""

    def refuse(self, reason: str) -> None:
        self.refusal = reason
        if self.native is not None:
            self.native.refuse(reason)
