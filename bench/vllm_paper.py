"""The paper's own connector on the same vLLM: rows of ttft.json and throughput.json beside ours.

`python bench/vllm_paper.py --paper FOLDER`, a checkout of the code of arXiv 2607.27090; nothing of
it is copied here. Measured is what its answer client does for a request: compose the KV of the
retrieved facts for this prompt (which lie on the GPU, before RoPE), register it, generate, remove
it. Left out are retrieval, the prompt's making, and the scaffold's chunks. KV is of random numbers.

Modes: `paper_kv`, under a fresh salt each time; `paper_ceiling`: the same prompt from vLLM's prefix
cache, on the same engine. `compose_ms` is the host's time within the request, `compose_alone_ms`
includes the GPU's. Composed KV lies beside vLLM's memory, 131 KB a token of Llama-3.1-8B: for 100
users `--gpu-memory-utilization 0.6 --memories 50`.
"""

import gc
import importlib
import operator
import pathlib
import statistics
import sys
import tempfile
import time
from types import SimpleNamespace

from vllm_common import (
    TAIL_TOKENS,
    Results,
    Vllm,
    left,
    main,
    percentiles,
    turns,
)
from vllm_throughput import OUTPUT_TOKENS, ROUNDS
from vllm_ttft import row_of

MODES = ["paper_kv", "paper_ceiling"]
NAMESPACE = "bench"


class PaperEngine(Vllm):
    """vLLM with the paper's connector, which finds its memories in a registry of this process."""

    def __init__(self, options) -> None:
        import torch
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

        if options.paper is None:
            raise SystemExit("vllm_paper: --paper FOLDER is missing")
        sys.path.insert(0, str(options.paper.resolve() / "src"))
        # Theirs is made for vLLM 0.19 and hands its base no kv_cache_config; 0.24's asks for it,
        # and only keeps it.
        KVConnectorBase_V1.__init__.__defaults__ = (None,)
        names = ["chunked_rope", "connector_utils", "gpu_connector", "gpu_registry", "rope",
                 "types", "vllm_runtime"]
        self.paper = paper = SimpleNamespace(**{
            name: importlib.import_module("locomo_jasper_bench.kv." + name) for name in names})
        self.device = "cpu" if options.host_device else "cuda:0"
        self.dtype = getattr(torch, options.dtype)
        store = paper.gpu_registry.get_gpu_memory_store(NAMESPACE, backend="gpu")
        if options.host_device:
            store._device = self.device
        folder = pathlib.Path(tempfile.mkdtemp(prefix="inferscale-bench-"))
        # As in their throughput benchmark a request names its memory: with a default user the
        # ceiling's requests, which have none, would be refused.
        super().__init__(options, folder, paper.vllm_runtime.build_strict_gpu_kv_transfer_config(
            connector_module=paper.gpu_connector.__name__, namespace=NAMESPACE,
            default_user_id=None, log_memory_hits=False))
        cos, sin = self._tables(folder)
        self.encoder = paper.chunked_rope.ChunkedRopeEncoder.from_tables(
            model=str(folder), device=self.device, max_position=options.max_model_len,
            tokenizer=None, cos_table=cos, sin_table=sin)
        self.block = self.llm.llm_engine.vllm_config.cache_config.block_size
        self.expected_tokens = 0
        paper.gpu_connector.reset_load_stats()

    def _tables(self, folder):
        """Their cosines and sines, of transformers' model of this shape without its layers."""
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(folder)
        self.layers, self.heads = config.num_hidden_layers, config.num_key_value_heads
        self.head_dim = (getattr(config, "head_dim", None)
                         or config.hidden_size // config.num_attention_heads)
        config.num_hidden_layers, config.vocab_size = 0, 8
        model = AutoModelForCausalLM.from_config(config)
        tables = self.paper.rope.extract_cos_sin_from_model(
            model, torch.arange(self.options.max_model_len), self.head_dim)
        return [table.to(self.device) for table in tables]

    def chunks(self, facts: list[list[int]]) -> list:
        """Facts as their encoder leaves them: of every layer, keys before RoPE, and values."""
        import torch

        return [self.paper.types.EncodedChunk(token_ids=fact, kv_by_layer={
            f"model.layers.{layer}.self_attn.attn": torch.randn(
                2, len(fact), self.heads, self.head_dim, dtype=self.dtype, device=self.device)
            for layer in range(self.layers)}) for fact in facts]

    def request(self, prompt, *, user=None, salt=None, tokens=1):
        """\\param user: whose KV is injected, as it was composed last."""
        ready = super().request(prompt, salt=salt, tokens=tokens)
        if user is not None:
            ready[1].extra_args = {self.paper.connector_utils.MEMORY_USER_ID_EXTRA_ARG: user}
        return ready

    def compose(self, chunks, token_ids: list[int], user: str) -> float:
        """What their client does before it calls vLLM. \\return seconds"""
        began = time.perf_counter()
        self.paper.gpu_registry.register_user_memory(
            NAMESPACE, user_id=user, kv_by_layer=self.encoder.compose_chunks(chunks),
            num_tokens=len(token_ids), token_ids=token_ids)
        self.expected_tokens += len(token_ids) // self.block * self.block
        return time.perf_counter() - began

    def forget(self) -> None:
        """What it does after the answer; the time of a request without its KV means nothing."""
        self.paper.gpu_registry.clear_namespace(NAMESPACE)
        loaded = self.paper.gpu_connector.snapshot_load_stats()["tokens_loaded"]
        if loaded != self.expected_tokens:
            raise RuntimeError(f"{loaded} tokens were loaded, not {self.expected_tokens}")

    def compose_alone(self, chunks) -> float:
        """Seconds of a composition from an idle GPU to an idle GPU."""
        self.synchronize()
        began = time.perf_counter()
        self.encoder.compose_chunks(chunks)
        self.synchronize()
        return time.perf_counter() - began

    def synchronize(self) -> None:
        import torch

        if self.device != "cpu":
            torch.cuda.synchronize()

    def report(self) -> None:
        print("connector:", self.paper.gpu_connector.snapshot_load_stats(), flush=True)


def tokens_of(chunks) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def run(engine, options) -> None:
    ttft(engine, options)
    throughput(engine, options)


def median_ms(seconds: list[float]) -> float:
    return round(1e3 * statistics.median(seconds), 3)


def ttft(engine, options) -> None:
    results = Results(options.out / "ttft.json", ("shape", "k", "mode", "system_tokens"))
    counts = [int(k) for k in options.facts.split(",")]
    chunks = engine.chunks(engine.facts(max(counts)))
    gc.collect()
    gc.freeze()  # thousands of tensors, which a collection would look at in a request's time
    times = {(mode, k): [] for mode in MODES for k in counts}
    composing, alone, cached = ({k: [] for k in counts} for _ in range(3))

    def measure(mode, k, repetition):
        tokens, tail = tokens_of(chunks[:k]), engine.ids(TAIL_TOKENS)
        if mode == "paper_ceiling":
            ready, composed = engine.request([*tokens, *tail], salt="cached"), 0.0
        elif k:
            ready = engine.request([*tokens, *tail], user="active")
            composed = engine.compose(chunks[:k], tokens, "active")
        else:  # nothing to compose, which they refuse; a request past their connector
            ready, composed = engine.request(tail), 0.0
        seconds, output = engine.first_token(ready)
        engine.forget()
        if repetition < 0:  # warms up; also fills the prefix cache
            return
        times[mode, k].append(composed + seconds)
        if mode == "paper_kv":
            composing[k].append(composed)
            alone[k].append(engine.compose_alone(chunks[:k]) if k else 0.0)
        else:
            cached[k].append(output.num_cached_tokens)

    def settle():
        engine.first_token(engine.request(engine.ids(TAIL_TOKENS)))

    for repetition, k, mode in turns(options, "ttft", counts, MODES, settle):
        measure(mode, k, repetition)
    for k in counts if times[MODES[0], counts[-1]] else []:
        tokens = len(tokens_of(chunks[:k]))
        if min(cached[k]) < tokens // engine.block * engine.block:
            raise RuntimeError(f"of {tokens} tokens the ceiling had {min(cached[k])} cached")
        for mode in MODES:
            row = row_of(options, k, mode, 0, tokens, {mode: times[mode, k]}, [],
                         times.get((mode, 0)))
            if mode == "paper_kv":
                row["compose_ms"] = median_ms(composing[k])
                row["compose_alone_ms"] = median_ms(alone[k])
                row["over_ceiling_ms"] = median_ms(
                    map(operator.sub, times[mode, k], times["paper_ceiling", k]))
            results.add(row)


def throughput(engine, options) -> None:
    """As vllm_throughput has it. They compose all users' KV before the batch's clock runs; here it
    does, since what users ask for is not known before."""
    results = Results(options.out / "throughput.json",
                      ("shape", "users", "mode", "fact_tokens"))
    counts = sorted(int(count) for count in options.users.split(","))
    memories = [engine.chunks(engine.facts(tokens=options.fact_tokens))
                for _ in range(min(options.memories, max(counts)))]
    gc.collect()
    gc.freeze()
    token_ids = [tokens_of(chunks) for chunks in memories]

    def request(mode, user):
        prompt = [*token_ids[user % len(memories)], *engine.ids(TAIL_TOKENS)]
        name = f"user {user}"
        owner = {"user": name} if mode == "paper_kv" else {"salt": name}
        return engine.request(prompt, tokens=OUTPUT_TOKENS, **owner)

    def arriving(requests, composing):
        """The requests, each composed when it is asked for: while the batch's clock runs."""
        for user, ready in enumerate(requests):
            number = user % len(memories)
            composing.append(engine.compose(memories[number], token_ids[number], f"user {user}"))
            yield ready

    print(f"chunks made; {left(options):.0f} s left", flush=True)
    for users in counts:
        rounds = ROUNDS.get(users, 2)
        taken = {mode: SimpleNamespace(seconds=[], first=[], composing=[]) for mode in MODES}
        for round_number in range(-1, rounds):
            for mode in MODES if round_number % 2 else reversed(MODES):
                if left(options) < 15:
                    print("throughput: no time left", flush=True)
                    return
                composing = []
                requests = [request(mode, user) for user in range(users)]
                if mode == "paper_kv":
                    requests = arriving(requests, composing)
                seconds, first, _ = engine.batch(requests)
                engine.forget()
                if round_number >= 0:  # the first one warms up, and fills the prefix cache
                    taken[mode].seconds.append(seconds)
                    taken[mode].first.extend(first)
                    taken[mode].composing.extend(composing)
        for mode in MODES:
            seconds = taken[mode].seconds
            results.add({
                "shape": options.shape, "users": users, "mode": mode,
                "fact_tokens": options.fact_tokens, "output_tokens": OUTPUT_TOKENS,
                "requests_per_s": round(users * len(seconds) / sum(seconds), 2),
                **percentiles(taken[mode].first), "rounds": len(seconds),
                "memories": len(memories),
                **({"compose_ms": median_ms(taken[mode].composing)}
                   if mode == "paper_kv" else {})})


if __name__ == "__main__":
    main("paper", PaperEngine)
