"""LMCache's own connector on the same vLLM: rows of ttft.json beside ours.

It keeps KV in pinned host memory, in chunks of 256 tokens, and reuses prefixes: a chunk counts only
behind the very tokens that it was stored behind. It does not look at the cache salt, so a fresh one
for each request keeps vLLM's prefix cache out of it. 64 tokens are new in every request. Modes:
`lmcache_same`: the same facts in the same order every time, which LMCache holds;
`lmcache_fresh`: the same facts in a new order every time, as retrieval gives them: LMCache finds
nothing and stores their KV, which is part of the time, as vLLM waits for it;
`lmcache_unsaved`: as fresh, but the request asks for nothing to be stored;
`lmcache_ceiling`: the prompt of `lmcache_same` from vLLM's prefix cache, on the same engine. LMCache
looks for it there too, and has nothing to do.
LMCache 0.5.3 is the newest whose kernels load with torch 2.11. An engine of its own:
`python bench/vllm_lmcache.py`.
"""

import operator
import os
import pathlib
import statistics
import tempfile
import types

from vllm_common import TAIL_TOKENS, Results, Vllm, main, turns
from vllm_ttft import row_of

MODES = ["lmcache_same", "lmcache_fresh", "lmcache_unsaved", "lmcache_ceiling"]
CHUNK_TOKENS = 256
CHECKED_TOKENS = 4 * CHUNK_TOKENS

os.environ.setdefault("LMCACHE_CHUNK_SIZE", str(CHUNK_TOKENS))
os.environ.setdefault("LMCACHE_LOCAL_CPU", "True")
# GiB, pinned at the start: all that 15 repetitions store, so that nothing is evicted meanwhile.
os.environ.setdefault("LMCACHE_MAX_LOCAL_CPU_SIZE", "28")
# Else several lines a request and, for every chunk loaded, a warning that it is unpinned twice.
os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("PYTHONHASHSEED", "0")  # LMCache's keys begin with what vLLM makes of it


class LmcacheEngine(Vllm):
    """vLLM with LMCache's connector, which takes its configuration from the environment."""

    def __init__(self, options) -> None:
        import lmcache

        # Without its kernels LMCache only warns, and copies with torch's operations.
        transfer = lmcache.c_ops.multi_layer_kv_transfer
        if isinstance(transfer, types.FunctionType | types.MethodType) and not options.host_device:
            raise SystemExit("vllm_lmcache: LMCache's own kernels did not load")
        super().__init__(options, pathlib.Path(tempfile.mkdtemp(prefix="inferscale-bench-")),
                         {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"})
        self.lmcache = lmcache.__version__
        self.block = self.llm.llm_engine.vllm_config.cache_config.block_size

    def request(self, prompt, *, save=True, salt=None, tokens=1):
        """\\param save: whether LMCache stores what it does not have."""
        ready = super().request(prompt, salt=salt, tokens=tokens)
        if not save:
            ready[1].extra_args = {"kv_transfer_params": {"lmcache.skip_save": True}}
        return ready

    def first_pass(self, prompt):
        """\\return how many tokens were found, and after its first pass, of the first
        CHECKED_TOKENS, vLLM's blocks and what they hold by layer."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        worker, vllm, seen = get_kv_transfer_group(), self.llm.llm_engine, []
        save, scheduler = worker.wait_for_save, vllm.engine_core.engine_core.scheduler

        def wait_for_save():
            save()
            if not seen:
                name = scheduler.running[0].request_id
                blocks = scheduler.kv_cache_manager.get_block_ids(name)[0]
                blocks = blocks[:CHECKED_TOKENS // self.block]
                layers = vllm.vllm_config.compilation_config.static_forward_context
                seen.extend([blocks, {name: layer.kv_cache[blocks].cpu()
                                      for name, layer in layers.items()}])

        worker.wait_for_save = wait_for_save
        # More tokens than one: the request must still run when its first pass ends.
        output = self.llm.generate(*self.request(prompt, tokens=4), use_tqdm=False)[0]
        del worker.wait_for_save
        return output.num_cached_tokens, *seen

    def check(self) -> None:
        """That LMCache loads what it stored, bit for bit, and into other blocks."""
        import torch

        prompt = self.ids(CHECKED_TOKENS + TAIL_TOKENS)
        none, computed_in, computed = self.first_pass(prompt)
        found, loaded_in, loaded = self.first_pass(prompt)
        same = sum(torch.equal(loaded[name], rows) for name, rows in computed.items())
        print(f"lmcache: {found} of {CHECKED_TOKENS} tokens found, {none} before they were stored; "
              f"{same} of {len(computed)} layers equal bit for bit", flush=True)
        if (none or found != CHECKED_TOKENS or same != len(computed)
                or set(loaded_in) & set(computed_in)):
            raise RuntimeError("LMCache does not load what it stored")

    def report(self) -> None:
        import lmcache

        print("lmcache:", self.lmcache, "on", lmcache.torch_device_type, flush=True)


def run(engine, options) -> None:
    engine.check()
    results = Results(options.out / "ttft.json", ("shape", "k", "mode", "system_tokens"))
    counts = [int(k) for k in options.facts.split(",")]
    facts = engine.facts(max(counts))
    tokens = {k: sum(map(len, facts[:k])) for k in counts}

    def request(mode, k):
        held = mode in ("lmcache_same", "lmcache_ceiling")
        chosen = facts[:k] if held else engine.random.sample(facts[:k], k)
        prompt = [token for fact in [*chosen, engine.ids(TAIL_TOKENS)] for token in fact]
        return engine.request(prompt, save=mode in ("lmcache_same", "lmcache_fresh"),
                              salt="cached" if mode == "lmcache_ceiling" else None)

    times = {(mode, k): [] for mode in MODES for k in counts}
    found = {key: set() for key in times}
    def settle():
        engine.first_token(engine.request(engine.ids(TAIL_TOKENS), save=False))

    for repetition, k, mode in turns(options, "lmcache", counts, MODES, settle):
        seconds, output = engine.first_token(request(mode, k))
        if repetition >= 0:  # before that, also LMCache and the prefix cache are filled
            times[mode, k].append(seconds)
            found[mode, k].add(output.num_cached_tokens)
    wrong = []
    for mode, k in times if times[MODES[0], counts[-1]] else []:
        unit = {"lmcache_same": CHUNK_TOKENS, "lmcache_ceiling": engine.block}.get(mode)
        expected = tokens[k] // unit * unit if unit else 0
        if found[mode, k] != {expected}:
            wrong.append(f"{mode}, {k} facts: {found[mode, k]} tokens found, not {expected}")
            continue
        row = row_of(options, k, mode, 0, tokens[k], {mode: times[mode, k]}, [],
                     times.get((mode, 0)))
        row |= {"cached_tokens": expected, "chunk_tokens": CHUNK_TOKENS, "lmcache": engine.lmcache}
        if mode != "lmcache_ceiling":
            row["over_ceiling_ms"] = round(1e3 * statistics.median(
                map(operator.sub, times[mode, k], times["lmcache_ceiling", k])), 3)
        results.add(row)
    if wrong:
        raise RuntimeError("; ".join(wrong))


if __name__ == "__main__":
    main("lmcache", LmcacheEngine)
