"""The scheduler's side: translates vLLM's requests and steps for the native scheduler."""

from typing import Any

import vllm

from inferscale import __version__, _native
from inferscale.vllm.control import ControlServer, NothingStored, Reports
from inferscale.vllm.settings import (
    Settings,
    engine_suffix,
    fingerprint_of,
    frees_ahead,
    refusal_of,
    specs_of,
    window_of,
)

PARAMETER = "inferscale"
MAC_DIGITS = 64


def obstacle(request: Any) -> str:
    """Why a request cannot use stored KV exactly; empty: it can."""
    if request.prompt_token_ids is None or getattr(request, "prompt_embeds", None) is not None:
        return "prompt_embeds"
    if getattr(request, "lora_request", None) is not None:
        return "lora"
    if getattr(request, "mm_features", None):
        return "multimodal"
    sampling = request.sampling_params
    if sampling is None:
        return "pooling"
    if sampling.prompt_logprobs is not None:
        return "prompt_logprobs"
    return ""


class SchedulerSide:
    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
        self.refusal = refusal_of(vllm_config, kv_cache_config)
        self.refused: dict[str, str] = {}  # request -> reason
        self.native: Any = None
        self.control: ControlServer | None = None
        self.reports = Reports()
        self.macs: dict[str, str] = {}
        groups = kv_cache_config.kv_cache_groups
        layers = sum(len(group.layer_names) for group in groups)
        if self.refusal:
            # Whoever looks for the reason finds it here, as that of a refusal by a rank.
            shape = [max([1, *(getattr(group.kv_cache_spec, name, 0) for group in groups)])
                     for name in ("num_kv_heads", "head_size")]
            self._listen(vllm_config, settings, NothingStored(self.refusal, settings.folder),
                         max(1, layers), *shape)
            return
        spec = specs_of(groups[0])[0]
        self.native = _native.Scheduler(
            secret=settings.secret,
            budget_bytes=settings.file_bytes if settings.folder else settings.host_bytes,
            token_bytes=_native.token_bytes(settings.codec, layers, spec.num_kv_heads,
                                            spec.head_size),
            ranks=vllm_config.parallel_config.tensor_parallel_size,
            window=window_of(kv_cache_config),
            block_slots=spec.block_size,
            frees_ahead=frees_ahead(vllm_config, vllm.__version__),
        )
        self._listen(vllm_config, settings, self.native, layers, spec.num_kv_heads, spec.head_size)

    def _listen(self, vllm_config: Any, settings: Settings, native: Any, layers: int,
                kv_heads: int, head_dim: int) -> None:
        """Opens the control socket, if there is to be one. `kv_heads` are those of a rank."""
        if not settings.control_socket:
            return
        parallel = vllm_config.parallel_config
        facts = {
            "version": __version__,
            "fingerprint": fingerprint_of(vllm_config).hex(),
            "codec": settings.codec,
            "layers": layers,
            "kv_heads": kv_heads * parallel.tensor_parallel_size,
            "head_dim": head_dim,
            "ranks": parallel.tensor_parallel_size,
        }
        self.control = ControlServer(
            settings.control_socket + engine_suffix(parallel), settings.secret, native,
            self.reports, lambda: {**facts, "refusal": native.counters()["refusal"]})

    def close(self) -> None:
        if self.control is not None:
            self.control.close()
            self.control = None

    def knows(self, request: Any) -> bool:
        """Adds a request that asks for us, once. False: it is none of ours, or is refused."""
        if self.native is not None and self.native.knows(request.request_id):
            return True
        # Of any type if a client names it among vLLM's extra arguments.
        parameters = request.kv_transfer_params
        transfer = parameters.get(PARAMETER) if isinstance(parameters, dict) else None
        if transfer is None or request.request_id in self.refused:
            return False
        reason = "model_unsupported" if self.native is None else obstacle(request)
        if reason:
            self.refused[request.request_id] = reason
            return False
        try:
            self.native.add(request.request_id, transfer, request.prompt_token_ids,
                            request.cache_salt or "")
        except TypeError:  # ids or a salt that no token or text can be
            self.refused[request.request_id] = "malformed"
            return False
        mac = transfer.get("mac") if isinstance(transfer, dict) else None
        if isinstance(mac, str) and len(mac) == MAC_DIGITS:  # a client may send anything
            self.macs[request.request_id] = mac
        return True

    def matched_tokens(self, request: Any, computed: int) -> int | None:
        """None: its blocks are on their way to the GPU; vLLM asks again in the next step."""
        if not self.knows(request):
            return 0
        return self.native.matched_tokens(request.request_id, computed, request.num_tokens)

    def allocated(self, name: str, external: int, table: list[int]) -> None:
        self.native.allocated(name, external, table)

    def plan(self, output: Any) -> Any:
        """A native StepPlan; None when there is nothing to do."""
        if self.native is None:
            return None
        # Normally known already; pins must go also when that hook has failed.
        for name in output.finished_req_ids:
            self.refused.pop(name, None)
            if self.native.knows(name):
                self._finish(name)
        scheduled = output.num_scheduled_tokens
        for new in output.scheduled_new_reqs:
            if self.native.follows(new.req_id):
                begin = new.num_computed_tokens
                self.native.scheduled(new.req_id, begin + scheduled[new.req_id],
                                      list(new.block_ids[0]), True, begin)
        cached = output.scheduled_cached_reqs
        for number, name in enumerate(cached.req_ids):
            if self.native.follows(name):
                blocks = cached.new_block_ids[number]
                begin = cached.num_computed_tokens[number]
                self.native.scheduled(name, begin + scheduled[name],
                                      list(blocks[0]) if blocks else [],
                                      name in cached.resumed_req_ids, begin)
        return self.native.take_plan()

    def start(self, reports: list[bytes]) -> None:
        try:
            self.take_reports(reports)
        finally:
            if self.native is not None:
                self.native.start_complete()

    def take_reports(self, reports: list[bytes]) -> None:
        """One that cannot be read keeps no other from being taken."""
        failure: Exception | None = None
        for report in reports:
            if self.native is not None and report:
                try:
                    self.native.take_report(report)
                except Exception as error:
                    failure = error
        if failure is not None:
            raise failure

    def finished(self, request: Any) -> dict[str, Any] | None:
        reason = self.refused.pop(request.request_id, None)
        if reason is not None:
            return {PARAMETER: {"injected_tokens": 0, "captured_blocks": 0,
                                "fallback": {reason: 1}}}
        if self.native is None or not self.native.knows(request.request_id):
            return None
        return {PARAMETER: self._finish(request.request_id)}

    def _finish(self, name: str) -> dict[str, Any]:
        outcome = self.native.finished(name)
        mac = self.macs.pop(name, None)
        if mac is not None:
            self.reports.add(mac, outcome)
        return outcome
