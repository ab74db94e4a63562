"""What the vLLM benchmarks share: an engine with the connector, facts, requests, results.

Each benchmark is a module with `run(engine, options)`; several of them share one engine, since
starting one takes a minute. An unmodified vLLM with random weights of a true shape: right for time,
meaningless as text. `python bench/vllm_ttft.py exactness throughput --out FOLDER`.
"""

import argparse
import datetime
import fcntl
import functools
import gc
import hashlib
import importlib
import json
import os
import pathlib
import platform
import random
import secrets
import statistics
import sys
import tempfile
import time
import traceback

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SCOPE = 7
TAIL_TOKENS = 64
SYSTEM_TOKENS = 2000
# Everything of an attention layer's shape that these benchmarks name.
SHAPES = {
    "Llama-3.1-8B": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                         num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                         vocab_size=128256, rope_theta=500000.0, architectures=["LlamaForCausalLM"],
                         model_type="llama", max_position_embeddings=131072, rope_scaling={
                             "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 8192, "rope_type": "llama3"}),
    "Qwen2.5-7B": dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
                       num_attention_heads=28, num_key_value_heads=4, vocab_size=152064,
                       rope_theta=1000000.0, architectures=["Qwen2ForCausalLM"],
                       model_type="qwen2", max_position_embeddings=32768),
    "Mistral-7B": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                       num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                       vocab_size=32768, rope_theta=1000000.0,
                       architectures=["MistralForCausalLM"], model_type="mistral",
                       max_position_embeddings=32768, sliding_window=None),
    "tiny": dict(hidden_size=256, intermediate_size=512, num_hidden_layers=4,
                 num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=512,
                 rope_theta=10000.0, architectures=["LlamaForCausalLM"], model_type="llama",
                 max_position_embeddings=32768),
}


def parse(claims: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("also", nargs="*", help="further benchmarks on the same engine")
    parser.add_argument("--shape", default="Llama-3.1-8B", choices=SHAPES)
    parser.add_argument("--codec", default="bf16")
    parser.add_argument("--gpu-bytes", default="32G")
    parser.add_argument("--pinned-bytes", default="1G", help="host memory to promote facts from")
    parser.add_argument("--host-bytes", default="80G")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.72)
    parser.add_argument("--kv-cache-bytes", metavar="SIZE",
                        help="of vLLM's cache, instead of a share of the GPU's memory")
    parser.add_argument("--block-size", type=int, metavar="TOKENS", help="of vLLM's cache")
    parser.add_argument("--turn", type=pathlib.Path, metavar="FILE",
                        help="a lock: engines on one GPU, started together, measure one after "
                             "another, and none while another starts")
    parser.add_argument("--max-model-len", type=int, default=16384)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--facts", default="0,5,10,20,50,100,200")
    parser.add_argument("--users", default="1,10,50,100,200")
    parser.add_argument("--memories", type=int, default=100,
                        help="different owners' facts; more users than that share them")
    parser.add_argument("--fact-tokens", type=int, default=2000, help="of each user's memory")
    parser.add_argument("--modes", default="", help="of text,text_cached,kv,ceiling; empty: all")
    parser.add_argument("--large-cache", action="store_true",
                        help="no arena, its bytes are vLLM's cache: for text alone")
    parser.add_argument("--eager", action="store_true", help="without compilation and CUDA graphs")
    parser.add_argument("--no-async-scheduling", action="store_true")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--host-device", action="store_true",
                        help="on a CPU, through the path of a device: tries a benchmark out")
    parser.add_argument("--paper", type=pathlib.Path, metavar="FOLDER",
                        help="a checkout of the paper's repository, for vllm_paper")
    parser.add_argument("--budget-seconds", type=float, default=540, help="of the whole run")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/results"))
    options = parser.parse_args()
    options.claims = claims + options.also
    if options.large_cache:
        options.gpu_bytes, options.gpu_memory_utilization = "64M", 0.94
    options.started = time.monotonic()
    return options


def name_of(mode: str, options) -> str:
    """Of a mode in rows: what an int4 engine, or one with larger blocks, has measured does not replace
    another's."""
    if options.codec == "int4" and mode in ("kv", "ceiling"):
        mode += "_int4"
    return mode + (f"_block{options.block_size}" if options.block_size else "")


def left(options) -> float:
    return options.budget_seconds - (time.monotonic() - options.started)


def turns(options, claim: str, counts: list[int], modes: list[str], settle):
    """(repetition, count, mode) of each measurement; below 0 they warm up. A repetition has every
    count in every mode, so that what drifts hits all alike.

    \\param settle: called before each repetition: its first request would follow the longest.
    """
    for repetition in range(-2, options.repetitions):
        if left(options) < 20:
            print(f"{claim}: no time left after {repetition} repetitions", flush=True)
            return
        settle()
        for count in counts:
            # Whoever comes first finds other things in the processor's cache.
            for mode in modes if repetition % 2 else reversed(modes):
                yield repetition, count, mode


def main(claim: str, engine_class: type | None = None) -> None:
    """Runs this benchmark, and others named on the command line, on one engine."""
    options = parse([claim])
    options.out.mkdir(parents=True, exist_ok=True)
    turn = options.turn.open("w") if options.turn else None
    if turn is not None:
        fcntl.flock(turn, fcntl.LOCK_SH)
    engine = (engine_class or Engine)(options)
    print(f"engine ready after {time.monotonic() - options.started:.0f} s", flush=True)
    if turn is not None:
        ready = time.monotonic()
        fcntl.flock(turn, fcntl.LOCK_EX)  # until this process ends
        options.started += time.monotonic() - ready  # no time of its own
    failed = False
    for name in options.claims:
        if left(options) < 10:
            print(f"{name}: no time left", flush=True)
            failed = True
            continue
        try:
            importlib.import_module(f"vllm_{name}").run(engine, options)
        except Exception:
            failed = True
            traceback.print_exc()
    engine.report()
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # vLLM's own shutdown takes long


def describe_hardware() -> str:
    import torch

    if not torch.cuda.is_available():
        return platform.processor() or platform.machine()
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"


def runner() -> str:
    """vLLM's model runner, which it chooses by the model unless VLLM_USE_V2_MODEL_RUNNER is set."""
    return "2" if "vllm.v1.worker.gpu.model_runner" in sys.modules else "1"


class Results:
    """One JSON file of rows, written after each of them; rows of the same key are replaced."""

    def __init__(self, path: pathlib.Path, key: tuple[str, ...]) -> None:
        import torch
        import vllm

        import inferscale

        self.path, self.key = path, key
        old = json.loads(path.read_text()) if path.exists() else {}
        self.document = {
            "hardware": describe_hardware(),
            "versions": {"vllm": vllm.__version__, "torch": torch.__version__,
                         "cuda": torch.version.cuda, "inferscale": inferscale.__version__,
                         "python": platform.python_version(), "runner": runner()},
            "date": datetime.date.today().isoformat(),
            "command": " && ".join(dict.fromkeys(
                [*filter(None, [old.get("command")]), " ".join(["python", *sys.argv])])),
            "rows": old.get("rows", []),
        }

    def add(self, row: dict) -> None:
        same = [{name: row.get(name) for name in self.key}]
        self.document["rows"] = [other for other in self.document["rows"]
                                 if {name: other.get(name) for name in self.key} not in same]
        self.document["rows"].append(row)
        temporary = self.path.with_suffix(".part")
        temporary.write_text(json.dumps(self.document, indent=1) + "\n")
        temporary.rename(self.path)
        print(json.dumps(row), flush=True)


def summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    return {"ttft_ms": round(1e3 * statistics.median(ordered), 3), "p10": at(0.1), "p90": at(0.9)}


class Vllm:
    """vLLM in this process with a connector, and requests that any connector lets pass."""

    def __init__(self, options, folder: pathlib.Path, kv_transfer_config: dict) -> None:
        """\\param folder: where the model's configuration is written."""
        from vllm import LLM

        from inferscale.vllm.settings import parse_size

        self.options = options
        self.random = random.Random(20261130)
        self.vocabulary = SHAPES[options.shape]["vocab_size"]
        config = dict(SHAPES[options.shape], rms_norm_eps=1e-5, hidden_act="silu", bos_token_id=1,
                      eos_token_id=2, tie_word_embeddings=False, torch_dtype=options.dtype)
        (folder / "config.json").write_text(json.dumps(config))
        self.llm = LLM(
            model=str(folder), load_format="dummy", skip_tokenizer_init=True,
            dtype=options.dtype, max_model_len=options.max_model_len, max_num_seqs=256,
            enforce_eager=options.eager, enable_prefix_caching=True, disable_log_stats=True,
            **({"async_scheduling": False} if options.no_async_scheduling else {}),
            **({"block_size": options.block_size} if options.block_size else {}),
            **({"kv_cache_memory_bytes": parse_size("kv_cache_bytes", options.kv_cache_bytes),
                "gpu_memory_utilization": 0.05} if options.kv_cache_bytes else
               {"gpu_memory_utilization": options.gpu_memory_utilization}),
            kv_transfer_config=kv_transfer_config)
        self.numbers = 0
        # As vLLM's own engine process does: a collection of all that was loaded takes milliseconds.
        gc.collect()
        gc.freeze()

    def report(self) -> None:
        """Prints what the connector counted."""

    # Tokens.

    def ids(self, count: int) -> list[int]:
        return [self.random.randrange(10, self.vocabulary) for _ in range(count)]

    def facts(self, count: int = 0, tokens: int = 0) -> list[list[int]]:
        """`count` facts, or facts of `tokens` together: 15 to 45 tokens each, as LoCoMo's are."""
        out, total = [], 0
        while len(out) < count if count else total < tokens:
            length = self.random.randint(15, 45)
            if not count:
                length = min(length, tokens - total)
            out.append(self.ids(length))
            total += length
        return out

    def salt(self) -> str:
        self.numbers += 1
        return f"salt {self.numbers}"

    # Requests.

    def request(self, prompt, *, salt=None, tokens=1):
        """A prompt and its sampling."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=tokens, detokenize=False,
                                  ignore_eos=True)
        return {"prompt_token_ids": prompt, "cache_salt": salt or self.salt()}, sampling

    def first_token(self, request) -> tuple[float, object]:
        """Seconds from the request's arrival to its first token, and its output."""
        began = time.perf_counter()
        output = self.llm.generate(*request, use_tqdm=False)[0]
        return time.perf_counter() - began, output

    def batch(self, requests) -> tuple[float, list[float], list[int]]:
        """All at once. \\return seconds until the last token, to the first one of each, and tokens of
        each that were not computed."""
        engine = self.llm.llm_engine
        began, arrival, first, cached = time.perf_counter(), {}, {}, {}
        for number, (prompt, sampling) in enumerate(requests):
            self.numbers += 1
            name = f"b{self.numbers}-{number}"
            arrival[name] = began
            engine.add_request(name, prompt, sampling)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.outputs and output.outputs[0].token_ids:
                    first.setdefault(output.request_id, time.perf_counter())
                    cached[output.request_id] = output.num_cached_tokens or 0
        took = time.perf_counter() - began
        names = [name for name in arrival if name in first]
        return took, [first[n] - arrival[n] for n in names], [cached[n] for n in names]

    def closed_loop(self, requests, in_flight: int, beside=None, beside_in_flight: int = 0):
        """`in_flight` requests at a time until all have been answered, and `beside_in_flight` of
        `beside` (never ending) with them.

        \\return seconds until the last token, seconds to the first token of each, answers to
        `beside` meanwhile.
        """
        engine = self.llm.llm_engine
        waiting, arrival, first = list(reversed(requests)), {}, {}
        own, others, answered = set(), set(), 0

        def add(request, names):
            self.numbers += 1
            name = f"c{self.numbers}"
            arrival[name] = time.perf_counter()
            engine.add_request(name, *request)
            names.add(name)

        began = time.perf_counter()
        while waiting or own:
            while waiting and len(own) < in_flight:
                add(waiting.pop(), own)
            while len(others) < beside_in_flight:
                add(next(beside), others)
            for output in engine.step():
                name = output.request_id
                if output.outputs and output.outputs[0].token_ids:
                    first.setdefault(name, time.perf_counter() - arrival[name])
                if output.finished and name in others:
                    others.discard(name)
                    answered += 1
                    first.pop(name, None)
                elif output.finished:
                    own.discard(name)
        took = time.perf_counter() - began
        while engine.has_unfinished_requests():
            engine.step()
        return took, [seconds for name, seconds in first.items() if name not in others], answered


class Engine(Vllm):
    """vLLM with our connector, and its two sides at hand."""

    def __init__(self, options) -> None:
        from inferscale.vllm import InferScaleConnector
        from inferscale.vllm.worker import WorkerSide

        if options.host_device:
            WorkerSide.devices = ("cpu",)
        self.secret = secrets.token_bytes(32).hex().encode()
        folder = pathlib.Path(tempfile.mkdtemp(prefix="inferscale-bench-"))
        secret_file = folder / "secret"
        secret_file.touch(0o600)
        secret_file.write_bytes(self.secret)
        self.connectors = made = []
        original = InferScaleConnector.__init__

        @functools.wraps(original)
        def remember(connector, *arguments, **keywords):
            original(connector, *arguments, **keywords)
            made.append(connector)

        InferScaleConnector.__init__ = remember
        super().__init__(options, folder, {
            "kv_connector": "InferScaleConnector",
            "kv_connector_module_path": "inferscale.vllm",
            "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "secret_file": str(secret_file), "codec": options.codec,
                "gpu_bytes": options.gpu_bytes, "pinned_bytes": options.pinned_bytes,
                "host_bytes": options.host_bytes}})
        InferScaleConnector.__init__ = original
        self.scheduler = next(c.scheduler for c in made if c.scheduler is not None)
        self.worker = next(c.worker for c in made if c.worker is not None)
        self.hooks = HookTime(made)
        self.say("probe", self.request([5] * 1025, "probe"))
        if not self.scheduler.native.rotation_known:
            raise RuntimeError(f"no injection: {self.scheduler.native.counters()}, "
                               f"{self.worker.refusal}")

    def report(self) -> None:
        print("device:", self.worker.native.device_counters() if self.worker.native else "-")
        print("connector:", self.scheduler.native.counters(), flush=True)

    def request(self, prompt, operation=None, blocks=(), *, salt=None, tokens=1):
        """A prompt and its sampling, signed, as a gateway has it ready."""
        from inferscale import _native

        ready = super().request(prompt, salt=salt, tokens=tokens)
        if operation is not None:
            signed = _native.sign_transfer(
                operation, salt=ready[0]["cache_salt"], scope_tag=SCOPE, epoch=1,
                expires_ms=int((time.time() + 3600) * 1000), blocks=list(blocks), prompt=prompt,
                secret=self.secret)
            ready[1].extra_args = {"kv_transfer_params": {"inferscale": signed}}
        return ready

    @staticmethod
    def place(parts: list[list[int]]):
        """(prompt, blocks) of parts one after the other; each part's key is made of its tokens."""
        prompt, blocks = [], []
        for part in parts:
            key = hashlib.sha256(repr(part).encode()).digest()[:16]
            blocks.append((key, len(prompt), len(prompt) + len(part)))
            prompt += part
        return prompt, blocks

    def capture(self, parts: list[list[int]]) -> None:
        """Stores the KV of all parts; as they are placed, so one behind the other."""
        batch, size = [], 0
        most = self.options.max_model_len - 2
        for part in [*parts, None]:
            if batch and (part is None or size + len(part) > most):
                prompt, blocks = self.place(batch)
                said = self.say("capture", self.request([*prompt, 7], "capture", blocks))
                if said["captured_blocks"] != len(blocks):
                    raise RuntimeError(f"{said} of {len(blocks)} blocks")
                batch, size = [], 0
            if part is not None:
                batch.append(part)
                size += len(part)

    def say(self, what: str, request) -> dict:
        output = self.llm.generate(*request, use_tqdm=False)[0]
        said = (output.kv_transfer_params or {}).get("inferscale", {})
        if said.get("fallback"):
            print(f"{what}: {said}", flush=True)
        return said


def percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"ttft_p50_ms": round(1e3 * ordered[len(ordered) // 2], 2),
            "ttft_p99_ms": round(1e3 * ordered[int(0.99 * (len(ordered) - 1))], 2)}


class HookTime:
    """Seconds that this process spends in the connector's hooks before a request's pass, by hook."""

    HOOKS = ("get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta",
             "handle_preemptions", "start_load_kv")

    def __init__(self, connectors: list) -> None:
        self.seconds = dict.fromkeys(self.HOOKS, 0.0)
        for connector in connectors:
            for name in self.HOOKS:
                setattr(connector, name, self._timed(name, getattr(connector, name)))

    def clear(self) -> None:
        self.seconds = dict.fromkeys(self.HOOKS, 0.0)

    def _timed(self, name, hook):
        @functools.wraps(hook)
        def call(*arguments, **keywords):
            began = time.perf_counter()
            try:
                return hook(*arguments, **keywords)
            finally:
                self.seconds[name] += time.perf_counter() - began

        return call
