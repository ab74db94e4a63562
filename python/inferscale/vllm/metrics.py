"""The connector's counters in vLLM's log and its Prometheus metrics."""

from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

FALLBACK = "fallback:"
COUNTERS = {
    "requests": "Requests that asked for stored KV.",
    "injected_tokens": "Tokens whose stored KV was injected.",
    "captured_blocks": "Blocks of KV that every rank has stored.",
    "load_failures": "Blocks that were promised and missing, and were computed.",
    "evictions": "Blocks evicted from every tier.",
    "gpu_hits": "Blocks found in the GPU's arena, over all ranks.",
    "gpu_promotions": "Blocks copied up to the arena from host memory or files.",
    "gpu_promoted_bytes": "Bytes of these.",
    "gpu_evictions": "Blocks evicted from the arena.",
    "pinned_hits": "Promoted blocks that were in pinned host memory.",
    "waits": "Requests that waited for blocks to be promoted.",
    "waits_given_up": "Requests whose blocks were read when they were loaded instead.",
}


@dataclass
class ConnectorStats(KVConnectorStats):
    """What has been counted since the last call: name -> number."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> "ConnectorStats":
        names = self.data.keys() | other.data.keys()
        return ConnectorStats({n: self.data.get(n, 0) + other.data.get(n, 0) for n in names})

    def reduce(self) -> dict[str, int | float]:
        return {f"inferscale {name}": value for name, value in sorted(self.data.items())}

    def is_empty(self) -> bool:
        return not self.data


class ConnectorPromMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config: Any, metric_types: dict, labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter = metric_types[Counter]
        self.counters = {
            name: counter(name=f"vllm:inferscale_{name}", documentation=text, labelnames=labelnames)
            for name, text in COUNTERS.items()}
        self.fallbacks = counter(
            name="vllm:inferscale_fallbacks",
            documentation="Blocks that were computed as text, by reason.",
            labelnames=[*labelnames, "reason"])

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            if name.startswith(FALLBACK):
                self.fallbacks.labels(*labels, name.removeprefix(FALLBACK)).inc(value)
            elif name in self.counters:
                self.counters[name].labels(*labels).inc(value)
