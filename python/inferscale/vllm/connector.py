"""InferScaleConnector: vLLM's hooks, each handed to the scheduler's or the worker's side.

No exception leaves a hook: it is logged and counted, the request is computed by vLLM, and after
repeated failures the connector does nothing more.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.logger import init_logger

from inferscale.vllm.scheduler import SchedulerSide
from inferscale.vllm.settings import check_version, read_settings
from inferscale.vllm.worker import WorkerSide

logger = init_logger("vllm.inferscale")

MOST_FAILURES = 8


@dataclass
class StepMetadata(KVConnectorMetadata):
    plan: bytes = b""


@dataclass
class WorkerReports(KVConnectorWorkerMetadata):
    reports: list[bytes] = field(default_factory=list)

    def aggregate(self, other: "KVConnectorWorkerMetadata") -> "WorkerReports":
        return WorkerReports(self.reports + other.reports)


@dataclass
class FirstReport(KVConnectorHandshakeMetadata):
    """What a rank holds from before it started."""

    report: bytes = b""


def guarded(default: Callable[[], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A hook that answers `default()` instead of raising."""

    def decorate(hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(hook)
        def call(self: "InferScaleConnector", *arguments: Any, **options: Any) -> Any:
            if self.failures > MOST_FAILURES:
                return default()
            try:
                return hook(self, *arguments, **options)
            except Exception:
                self.failures += 1
                logger.exception("inferscale: %s failed; computed without stored KV", hook.__name__)
                if self.failures > MOST_FAILURES:
                    logger.error("inferscale: off after %d failures", self.failures)
                    if self.worker is not None:
                        self.worker.refuse("too many failures")
                return default()

        return call

    return decorate


class InferScaleConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = read_settings(vllm_config.kv_transfer_config.kv_connector_extra_config or {})
        check_version(vllm.__version__, settings.allow_untested_vllm)
        self.failures = 0
        self.scheduler: SchedulerSide | None = None
        self.worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler = SchedulerSide(vllm_config, kv_cache_config, settings)
            if self.scheduler.refusal:
                logger.warning("inferscale: facts are served as text: %s", self.scheduler.refusal)
        else:
            self.worker = WorkerSide(vllm_config, kv_cache_config, settings)

    # The scheduler's side.

    @guarded(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return self.scheduler.matched_tokens(request, num_computed_tokens), False

    @guarded(lambda: None)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.scheduler.allocated(request, blocks, num_external_tokens)

    @guarded(StepMetadata)
    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        return StepMetadata(self.scheduler.plan(scheduler_output))

    @guarded(lambda: None)
    def update_connector_output(self, connector_output: Any) -> None:
        reports = connector_output.kv_connector_worker_meta
        if isinstance(reports, WorkerReports):
            self.scheduler.take_reports(reports.reports)

    @guarded(lambda: (False, None))
    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict | None]:
        return False, self.scheduler.finished(request)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict | None]:
        return self.request_finished(request, block_ids)

    @guarded(lambda: False)
    def reset_cache(self) -> bool:
        if self.scheduler is not None and self.scheduler.native is not None:
            self.scheduler.native.clear()
        return True

    @guarded(lambda: None)
    def shutdown(self) -> None:
        if self.scheduler is not None:
            self.scheduler.close()

    @guarded(lambda: None)
    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self.scheduler.start([metadata[rank].report for rank in sorted(metadata)])

    # The worker's side.

    @guarded(lambda: None)
    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        try:
            self.worker.register(kv_caches)
        except NotImplementedError as error:
            self.worker.refuse(str(error))
        if self.worker.refusal:
            logger.warning("inferscale: facts are served as text: %s", self.worker.refusal)

    @guarded(lambda: None)
    def get_handshake_metadata(self) -> FirstReport:
        return FirstReport(self.worker.report())

    @guarded(lambda: None)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        self.worker.start_load(metadata.plan if isinstance(metadata, StepMetadata) else b"")

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Everything is loaded before the pass."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Everything is captured after the pass: layers are skipped under CUDA graphs."""

    @guarded(lambda: None)
    def wait_for_save(self) -> None:
        self.worker.save()

    @guarded(set)
    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.worker.failed_blocks()

    @guarded(lambda: None)
    def build_connector_worker_meta(self) -> WorkerReports | None:
        report = self.worker.report()
        return WorkerReports([report]) if report else None
