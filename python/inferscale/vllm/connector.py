"""InferScaleConnector: vLLM's hooks, each handed to the scheduler's or the worker's side.

No exception leaves a hook: it is logged and counted, what had been promised is reported as not
loaded, so that vLLM computes it, and after repeated failures nothing more is promised.
"""

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
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

from inferscale.vllm.metrics import ConnectorPromMetrics, ConnectorStats
from inferscale.vllm.scheduler import SchedulerSide
from inferscale.vllm.settings import (
    check_version,
    fails_instead_of_recomputing,
    read_settings,
    refuse_siblings,
    SettingsError,
    window_of,
)
from inferscale.vllm.worker import WorkerSide

logger = init_logger("vllm.inferscale")

MOST_FAILURES = 8
FORGET_FAILURES_S = 600
# Within so many steps vLLM hears what became of a load: two are under way at most.
REPORTED_WITHIN = 4


@dataclass
class StepMetadata(KVConnectorMetadata):
    plan: Any = None  # a native StepPlan
    # Engine blocks that the plan is to fill, and blocks that were promised and have no plan: what is
    # not written is reported as failed, whichever hook broke.
    loading: list[int] = field(default_factory=list)
    unplanned: list[int] = field(default_factory=list)
    # With a window, the blocks of each request that begins in this step, in the order of scheduling.
    tables: list[list[int]] = field(default_factory=list)


@dataclass
class WorkerReports(KVConnectorWorkerMetadata):
    reports: list[bytes] = field(default_factory=list)

    def aggregate(self, other: "KVConnectorWorkerMetadata") -> "WorkerReports":
        return WorkerReports(self.reports + other.reports)


@dataclass
class FirstReport(KVConnectorHandshakeMetadata):
    """What a rank holds from before it started."""

    report: bytes = b""


def siblings() -> list[dict[str, Any]]:
    """The connectors of the MultiConnector that is making this one; it hands each a configuration
    that does not tell of the others."""
    frame = sys._getframe(1)
    while frame is not None:
        if type(frame.f_locals.get("self")).__name__ == "MultiConnector":
            config = frame.f_locals.get("vllm_config")
            extra = getattr(config, "kv_transfer_config", None)
            return list((getattr(extra, "kv_connector_extra_config", None) or {})
                        .get("connectors", []))
        frame = frame.f_back
    return []


def guarded(default: Callable[[], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A hook that answers `default()` instead of raising."""

    def decorate(hook: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(hook)
        def call(self: "InferScaleConnector", *arguments: Any, **options: Any) -> Any:
            try:
                return hook(self, *arguments, **options)
            except Exception:
                self.count_failure(hook.__name__)
                return default()

        return call

    return decorate


class InferScaleConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = read_settings(vllm_config.kv_transfer_config.kv_connector_extra_config or {})
        check_version(vllm.__version__, settings.allow_untested_vllm)
        refuse_siblings(siblings())
        self.window = window_of(kv_cache_config)
        if fails_instead_of_recomputing(vllm_config, vllm.__version__, self.window):
            # Read by the scheduler after it has made its connector.
            vllm_config.kv_transfer_config.kv_load_failure_policy = "fail"
            if role == KVConnectorRole.SCHEDULER:
                where, instead = (
                    ("with a sliding window in every layer", "") if self.window else
                    ("under asynchronous scheduling, and with its second model runner,",
                     " --no-async-scheduling and VLLM_USE_V2_MODEL_RUNNER=0 have it computed."))
                logger.warning(
                    "inferscale: %s this vLLM answers with wrong tokens after a load that failed: "
                    "such a request ends with an error instead, and a gateway sends it again as "
                    "text.%s", where, instead)
        self.failures = 0
        self.last_failure = 0.0
        self.block_slots = vllm_config.cache_config.block_size
        self.matched_from: dict[str, int] = {}
        self.promised: list[int] = []  # blocks of this step's loads
        self.loading: list[int] = []
        self.new_tables: list[list[int]] = []
        self.begun_tables: list[list[int]] = []
        self.loaded: StepMetadata | None = None  # the last step that _load has seen
        # Otherwise the engine clears new blocks between its first hook and its pass.
        self.early = not getattr(kv_cache_config, "needs_kv_cache_zeroing", False)
        self.unwritten: set[int] = set()
        self.block_pool: Any = None
        self.step = 0
        self.tables: dict[str, tuple[int, list[int]]] = {}  # request -> step, engine blocks
        self.scheduler: SchedulerSide | None = None
        self.worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler = SchedulerSide(vllm_config, kv_cache_config, settings)
            if self.scheduler.refusal:
                logger.warning("inferscale: facts are served as text: %s", self.scheduler.refusal)
        else:
            self.worker = WorkerSide(vllm_config, kv_cache_config, settings)

    @property
    def off(self) -> bool:
        return self.failures > MOST_FAILURES

    def count_failure(self, what: str) -> None:
        now = time.monotonic()
        if not self.off and now - self.last_failure > FORGET_FAILURES_S:
            self.failures = 0  # not one fault, again and again
        self.last_failure = now
        self.failures += 1
        if self.failures <= MOST_FAILURES:
            logger.exception("inferscale: %s failed; computed without stored KV", what)
        elif self.failures == MOST_FAILURES + 1:
            logger.exception("inferscale: %s failed; off after %d failures", what, self.failures)
            if self.worker is not None:
                self.worker.refuse("too many failures")

    # Metrics, of either side.

    @guarded(lambda: None)
    def get_kv_connector_stats(self) -> ConnectorStats | None:
        native = (self.scheduler or self.worker).native
        growth = native.take_growth() if native is not None else None
        return ConnectorStats(growth) if growth else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> ConnectorStats:
        return ConnectorStats(data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: dict, labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> ConnectorPromMetrics:
        return ConnectorPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # The scheduler's side.

    @guarded(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any,
                                   num_computed_tokens: int) -> tuple[int | None, bool]:
        if self.off:
            return 0, False
        matched = self.scheduler.matched_tokens(request, num_computed_tokens)
        if matched:
            self.matched_from[request.request_id] = num_computed_tokens
        return matched, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        promised: list[int] = []
        try:
            if not self.scheduler.knows(request):
                return
            table = blocks.get_block_ids()[0]
            self.tables.pop(request.request_id, None)  # in the order of steps
            self.tables[request.request_id] = self.step, table
            if num_external_tokens > 0:
                begin = self.matched_from.get(request.request_id, 0)
                end = begin + num_external_tokens
                promised = table[begin // self.block_slots : -(-end // self.block_slots)]
                if self.window:
                    # Also what is computed behind them: another request of this step may share that
                    # and hold none of those. Null blocks are everybody's.
                    promised = [block for block in table[begin // self.block_slots :] if block != 0]
            self.scheduler.allocated(request.request_id, num_external_tokens, table)
            self.promised += promised
            if self.window:
                self.new_tables.append([block for block in table if block != 0])
        except Exception:
            self.count_failure("update_state_after_alloc")
            self.unwritten.update(promised)

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        promised, self.promised = self.promised, []
        tables, self.new_tables = self.new_tables, []
        unplanned, self.unwritten = list(self.unwritten), set()
        for name in scheduler_output.finished_req_ids:
            self.matched_from.pop(name, None)
        self.step += 1
        while self.tables and self.step - next(iter(self.tables.values()))[0] > REPORTED_WITHIN:
            del self.tables[next(iter(self.tables))]
        try:
            return StepMetadata(self.scheduler.plan(scheduler_output), promised, unplanned, tables)
        except Exception:
            self.count_failure("build_connector_meta")
            self.discard_plan()
            return StepMetadata(None, [], promised + unplanned)

    @guarded(lambda: None)
    def discard_plan(self) -> None:
        """What this step was to load must not be written in a later one, to blocks of others."""
        if self.scheduler.native is not None:
            self.scheduler.native.discard_plan()

    @guarded(lambda: None)
    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self.block_pool = gpu_block_pool

    @guarded(lambda: None)
    def forget(self, unwritten: set[int]) -> None:
        """Takes blocks that were not loaded, and what was computed behind them, out of vLLM's prefix
        cache, where they are from the moment they were promised. vLLM has those of requests that
        run computed again; of one that was aborted meanwhile the next request under its salt would
        get them."""
        if not unwritten or self.block_pool is None:
            return
        gone = set(unwritten)
        for _, table in self.tables.values():
            first = next((i for i, block in enumerate(table) if block in unwritten), len(table))
            gone.update(table[first:])
        self.block_pool.evict_blocks(gone)

    @guarded(lambda: None)
    def update_connector_output(self, connector_output: Any) -> None:
        self.forget(connector_output.invalid_block_ids)
        reports = connector_output.kv_connector_worker_meta
        if isinstance(reports, WorkerReports):
            self.scheduler.take_reports(reports.reports)

    @guarded(lambda: (False, None))
    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict | None]:
        return False, self.scheduler.finished(request)

    @guarded(lambda: (False, None))
    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict | None]:
        if request.request_id in self.tables and block_ids:  # more of them than at first
            step, before = self.tables[request.request_id]
            # What vLLM has freed behind a window is null by now, and in its prefix cache still.
            self.tables[request.request_id] = step, [
                now or then for now, then in zip_longest(block_ids[0], before, fillvalue=0)]
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
        if self.worker is not None:
            self.worker.close()

    @guarded(lambda: None)
    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self.scheduler.start([metadata[rank].report for rank in sorted(metadata)])

    # The worker's side.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        try:
            self.worker.register(kv_caches)
        except SettingsError:
            raise  # vLLM does not start
        except NotImplementedError as error:
            self.worker.refuse(str(error))
        except Exception as error:
            self.count_failure("register_kv_caches")
            self.worker.refuse(f"the cache could not be registered: {error}")
        if self.worker.refusal:
            logger.warning("inferscale: facts are served as text: %s", self.worker.refusal)

    @guarded(lambda: None)
    def get_handshake_metadata(self) -> FirstReport:
        return FirstReport(self.worker.report())

    def handle_preemptions(self, kv_connector_metadata: StepMetadata) -> None:
        """The step's first hook: the copies run while the engine prepares its inputs on the host.
        Blocks of a preempted request hold nothing that is still to be read."""
        if self.early:
            self._load(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._load(self._get_connector_metadata())

    def _load(self, metadata: StepMetadata) -> None:
        if metadata is self.loaded:
            return
        self.loaded = metadata
        self.loading, self.begun_tables = metadata.loading, metadata.tables
        self.unwritten.update(metadata.unplanned)
        try:
            self.worker.start_load(metadata.plan)
        except Exception:
            self.count_failure("start_load_kv")
            self.unwritten.update(self.loading)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Everything is loaded before the pass."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Everything is captured after the pass: layers are skipped under CUDA graphs."""

    @guarded(lambda: None)
    def wait_for_save(self) -> None:
        self.worker.save()

    def get_block_ids_with_load_errors(self) -> set[int]:
        unwritten, self.unwritten = self.unwritten, set()
        loading, self.loading = self.loading, []
        tables, self.begun_tables = self.begun_tables, []
        try:
            failed = unwritten | self.worker.failed_blocks()
            for table in tables if failed else []:
                first = next((i for i, block in enumerate(table) if block in failed), len(table))
                failed.update(table[first:])
            return failed
        except Exception:
            self.count_failure("get_block_ids_with_load_errors")
            return unwritten | set(loading)

    @guarded(lambda: None)
    def build_connector_worker_meta(self) -> WorkerReports | None:
        report = self.worker.report()
        return WorkerReports([report]) if report else None
