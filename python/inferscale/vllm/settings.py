"""What an operator sets: `kv_connector_extra_config`, and what of a model can be served as KV."""

import functools
import hashlib
import json
import pathlib
import re
from dataclasses import dataclass
from typing import Any

from inferscale import _native

# Minor versions that the tests run against, or whose sources were read (0.33).
TESTED_VLLM = {(0, 24), (0, 32), (0, 33)}
SIZE = re.compile(r"(\d+)([KMGT]?)", re.IGNORECASE)
MOST_BYTES = 1 << 50
UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
KNOWN = {"secret_file", "codec", "gpu_bytes", "pinned_bytes", "host_bytes", "file_bytes", "folder",
         "control_socket", "allow_untested_vllm"}
CODECS = ("f32", "f16", "bf16", "int8", "int4")


class SettingsError(ValueError):
    """A setting that cannot work; the text says which, and what to set."""


@dataclass(frozen=True)
class Settings:
    secret: bytes
    codec: str
    gpu_bytes: int  # a rank; the arena
    pinned_bytes: int  # a rank, of host memory, beside host_bytes; 0: none
    host_bytes: int  # a rank
    file_bytes: int  # a rank
    folder: str  # empty: no files
    control_socket: str  # path; empty: none. "-1" and so on are added for data-parallel ranks
    allow_untested_vllm: bool


def refuse_siblings(connectors: list[dict[str, Any]]) -> None:
    """Raises beside other connectors, which MultiConnector lets serve the same blocks.

    KV that was injected under one salt would reach whatever shares blocks without it; no connector
    has been seen to keep to the salt.
    """
    others = [str(c.get("kv_connector")) for c in connectors
              if c.get("kv_connector") != "InferScaleConnector"]
    if others or len(connectors) > 1:
        raise SettingsError(
            f"InferScaleConnector cannot stand beside {', '.join(others) or 'itself'} under "
            "MultiConnector: other connectors may share injected KV between users. Give it an "
            "engine of its own: \"kv_connector\": \"InferScaleConnector\""
        )


def fails_instead_of_recomputing(vllm_config: Any, version: str, window: int = 0) -> bool:
    """Whether vLLM's own recovery from a failed load would answer with wrong tokens.

    Where all layers have a window (of `window` tokens), vLLM computes from the failed block on, and
    what that looks back at may lie in blocks that it never allocated, because the loaded tokens had
    no use for them (seen with 0.24 and 0.32).

    Under asynchronous scheduling the next step of the request is already on its way when the
    failure is seen; vLLM 0.24 computes the prompt again, and keeps what that step then samples.
    Its second model runner is wrong under either scheduling (both seen on an H200). Nothing of the
    kind is known of later versions, and nothing was measured.
    """
    unsafe = getattr(vllm_config.scheduler_config, "async_scheduling", False) or getattr(
        vllm_config, "use_v2_model_runner", False)
    return vllm_config.kv_transfer_config.kv_load_failure_policy == "recompute" and (
        window > 0 or (bool(unsafe) and version.startswith("0.24.")))


def frees_ahead(vllm_config: Any, version: str) -> bool:
    """Whether a step's blocks behind a window are freed before vLLM hears how the step in front of it
    went. It finds a load that failed by the request's blocks: with those gone it would answer. (0.32
    keeps what steps under way look at.)"""
    return (bool(getattr(vllm_config.scheduler_config, "async_scheduling", False))
            and version.startswith("0.24."))


def parse_size(name: str, value: Any) -> int:
    """1073741824, "1G", "512M" -> bytes."""
    match = SIZE.fullmatch(str(value).strip())
    if isinstance(value, bool) or match is None:
        raise SettingsError(f"kv_connector_extra_config.{name}: {value!r} is no size; write 512M or 4G")
    size = int(match[1]) << UNITS[match[2].upper()]
    if size > MOST_BYTES:
        raise SettingsError(f"kv_connector_extra_config.{name}: {value!r} is more than {MOST_BYTES >> 40}T")
    return size


def read_settings(extra: dict[str, Any]) -> Settings:
    unknown = sorted(set(extra) - KNOWN)
    if unknown:
        raise SettingsError(
            f"kv_connector_extra_config has unknown settings: {', '.join(unknown)}; "
            f"known: {', '.join(sorted(KNOWN))}"
        )
    for name in ("secret_file", "folder", "control_socket"):
        if not isinstance(extra.get(name, ""), str):
            raise SettingsError(f"kv_connector_extra_config.{name} must be a path")
    allowed = extra.get("allow_untested_vllm", False)
    if not isinstance(allowed, bool):
        raise SettingsError("kv_connector_extra_config.allow_untested_vllm must be true or false")
    path = extra.get("secret_file")
    if not path:
        raise SettingsError(
            "kv_connector_extra_config.secret_file is missing: a file with the secret shared with "
            "the gateway (at least 16 bytes, readable by this user alone)"
        )
    try:
        secret = pathlib.Path(path).read_bytes().strip()
        mode = pathlib.Path(path).stat().st_mode
    except OSError as error:
        raise SettingsError(f"kv_connector_extra_config.secret_file: {error}") from error
    if mode & 0o077:
        raise SettingsError(f"secret_file {path} can be read by others; run chmod 600 {path}")
    if len(secret) < 16:
        raise SettingsError(f"secret_file {path} has {len(secret)} bytes; at least 16 are needed")
    codec = extra.get("codec", "f16")
    if codec not in CODECS:
        raise SettingsError(f"kv_connector_extra_config.codec: {codec!r}; known: {', '.join(CODECS)}")
    return Settings(
        secret=secret,
        codec=codec,
        gpu_bytes=parse_size("gpu_bytes", extra.get("gpu_bytes", "2G")),
        pinned_bytes=parse_size("pinned_bytes", extra.get("pinned_bytes", "1G")),
        host_bytes=parse_size("host_bytes", extra.get("host_bytes", "4G")),
        file_bytes=parse_size("file_bytes", extra.get("file_bytes", "32G")),
        folder=extra.get("folder", ""),
        control_socket=extra.get("control_socket", ""),
        allow_untested_vllm=allowed,
    )


def engine_suffix(parallel_config: Any) -> str:
    """Of the further engines of a data-parallel server, "-1" and so on; empty for the first.

    vLLM calls every engine of a dense model rank 0; their index tells them apart.
    """
    index = getattr(parallel_config, "data_parallel_index", None)
    if index is None:
        index = parallel_config.data_parallel_rank
    return f"-{index}" if index else ""


def check_version(version: str, allowed: bool) -> None:
    """Raises SettingsError for a vLLM whose connector interface nobody has looked at."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) in TESTED_VLLM:
        return
    known = ", ".join(f"{major}.{minor}" for major, minor in sorted(TESTED_VLLM))
    if not allowed:
        raise SettingsError(
            f"inferscale was not tested with vLLM {version} (tested: {known}); install one of those, "
            'or set "allow_untested_vllm": true in kv_connector_extra_config'
        )


def specs_of(group: Any) -> list[Any]:
    """What vLLM knows of the layers of a group of caches, the first of them first. A worker has it a
    layer where they differ in anything (UniformTypeKVCacheSpecs): on a GPU also if some have a window.
    The scheduler always has the first alone."""
    spec = group.kv_cache_spec
    layers = getattr(spec, "kv_cache_specs", None)
    return [spec] if layers is None else [layers[name] for name in group.layer_names]


def window_of(kv_cache_config: Any) -> int:
    """Tokens of the window behind which vLLM frees blocks, in the only group of caches; 0: it keeps
    them all, also if some layers have a window."""
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    groups = getattr(kv_cache_config, "kv_cache_groups", None) or []
    spec = specs_of(groups[0])[0] if len(groups) == 1 else None
    return spec.sliding_window if type(spec) is SlidingWindowSpec else 0


def refusal_of(vllm_config: Any, kv_cache_config: Any) -> str:
    """Why this engine's KV cannot be served exactly, in words; empty: it can. The same for scheduler
    and worker, so by the first layer of each group."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        return "pipeline parallelism is not supported"
    if any(getattr(vllm_config.parallel_config, f"{kind}_context_parallel_size", 1) > 1
           for kind in ("decode", "prefill")):
        return "context parallelism is not supported"
    if getattr(vllm_config, "speculative_config", None) is not None:
        return "speculative decoding is not supported"
    if getattr(vllm_config, "lora_config", None) is not None:
        return "LoRA is not supported"
    specs = [specs_of(group)[0] for group in kv_cache_config.kv_cache_groups]
    if {type(spec) for spec in specs} - {FullAttentionSpec, SlidingWindowSpec} or not specs:
        return "the model has layers other than attention with or without a sliding window"
    if any(getattr(spec, "attention_chunk_size", None) for spec in specs):
        return "the model has layers with chunked attention"
    if len(specs) > 1:
        if FullAttentionSpec in {type(spec) for spec in specs}:
            # A load that fails ends the engine there: vLLM maps failed blocks to requests by one table.
            return ("some of the model's layers have a sliding window: start vLLM with "
                    "--disable-hybrid-kv-cache-manager, which keeps the KV of all layers alike")
        return "the model has layers of several windows"
    spec = specs[0]
    if str(spec.dtype).removeprefix("torch.") not in ("float32", "float16", "bfloat16"):
        return f"the KV cache is of type {spec.dtype}"
    if getattr(spec, "head_size_v", spec.head_size) != spec.head_size:
        return "keys and values differ in size"
    return ""


def differing_layers(kv_cache_config: Any) -> str:
    """Why the layers of the only group of caches cannot be served as one, in words; empty: they can.
    Only a worker learns it."""
    first, *others = specs_of(kv_cache_config.kv_cache_groups[0])
    same = ("block_size", "num_kv_heads", "head_size", "head_size_v", "dtype", "attention_chunk_size")
    if any(type(other) is not type(first) or
           any(getattr(other, name, None) != getattr(first, name, None) for name in same)
           for other in others):
        return "the model's layers differ in their kind, heads or type"
    return ""


@functools.lru_cache(maxsize=4096)
def _hash_of(path: str, size: int, modified_ns: int) -> str:
    """Once a process: both sides of the connector ask."""
    return _native.sha256_file(path).hex()


def fingerprint_of(vllm_config: Any) -> bytes:
    """SHA-256 over all that decides a block's bytes: configuration, weights, types."""
    model = vllm_config.model_config
    parts = {
        "config": model.hf_config.to_dict(),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "cache": str(vllm_config.cache_config.cache_dtype),
        "tensor_parallel": vllm_config.parallel_config.tensor_parallel_size,
        "load_format": str(vllm_config.load_config.load_format),
        "revision": str(model.revision),
    }
    folder = pathlib.Path(model.model)
    weights = sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.bin"))
    parts["weights"] = [
        [file.name, _hash_of(str(file), file.stat().st_size, file.stat().st_mtime_ns)]
        for file in weights
    ]
    if not weights:
        parts["model"] = str(model.model)
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).digest()
