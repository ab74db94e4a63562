"""Time to first token against the number of facts, on an unmodified vLLM: ttft.json.

Modes: `text`: the facts are new to the engine (prefix caching is on, and holds the system text);
`text_cached`: the same facts every time, from the prefix cache; `ceiling`: the same again, measured as
its own series, since that is what injection is compared with; `kv` (`kv_int4` with that codec): the
facts' stored KV is injected, under a fresh salt each time. 64 tokens are new in every request. With
`--block-size 64` every mode's name ends in `_block64`.
One repetition runs every count of facts in every mode, so that what drifts hits all of them alike:
`over_ceiling_ms` and `growth` (to the same mode without facts, as a share) are medians of pairs.
"""

import operator
import statistics

from vllm_common import (
    SYSTEM_TOKENS,
    TAIL_TOKENS,
    HookTime,
    Results,
    main,
    name_of,
    summary,
    turns,
)


def run(engine, options) -> None:
    results = Results(options.out / "ttft.json", ("shape", "k", "mode", "system_tokens"))
    wanted = options.modes.split(",") if options.modes else ["text", "text_cached", "kv", "ceiling"]
    hooks = engine.hooks
    counts = [int(k) for k in options.facts.split(",")]
    system, facts = engine.ids(SYSTEM_TOKENS), engine.facts(max(counts))
    engine.capture([system])
    engine.capture(facts)
    engine.worker.native.flush()  # what is still copied to host memory would be measured too
    for system_tokens in (0, SYSTEM_TOKENS):
        front = [system] if system_tokens else []
        placed = {k: engine.place([*front, *facts[:k]]) for k in counts}

        def request(mode, k):
            (prompt, blocks), tail = placed[k], engine.ids(TAIL_TOKENS)
            if mode == "text":
                fresh = engine.place([*front, *(engine.ids(len(f)) for f in facts[:k])])[0]
                return engine.request([*fresh, *tail], salt="text")
            if mode == "kv":
                return engine.request([*prompt, *tail], "inject", blocks)
            return engine.request([*prompt, *tail], salt="cached " + mode)

        times = {(mode, k): [] for mode in wanted for k in counts}
        extra = {}
        host = {k: [] for k in counts}
        def settle():
            engine.first_token(engine.request(engine.ids(TAIL_TOKENS)))

        for repetition, k, mode in turns(options, "ttft", counts, wanted, settle):
            ready = request(mode, k)
            hooks.clear()
            seconds, output = engine.first_token(ready)
            if repetition < 0:  # also fills the prefix cache
                continue
            times[mode, k].append(seconds)
            said = (output.kv_transfer_params or {}).get("inferscale", {})
            extra[mode, k] = {"injected_tokens": said.get("injected_tokens", 0),
                              "cached_tokens": output.num_cached_tokens}
            if mode == "kv":
                host[k].append(dict(hooks.seconds))
                if k and said.get("injected_tokens") != len(placed[k][0]):
                    raise RuntimeError(f"not injected: {said}")
        for k in counts if times[wanted[0], counts[-1]] else []:
            for mode in wanted:
                results.add(row_of(options, k, mode, system_tokens, len(placed[k][0]),
                                   {mode: times[mode, k] for mode in wanted}, host[k],
                                   times.get((mode, 0))) | extra[mode, k])


def row_of(options, k, mode, system_tokens, tokens, times, host, none) -> dict:
    """\\param none: seconds of the same mode without facts, if that was measured too."""
    row = {"shape": options.shape, "k": k, "mode": name_of(mode, options),
           "system_tokens": system_tokens, "prompt_tokens": tokens + TAIL_TOKENS,
           **summary(times[mode]), "repetitions": len(times[mode])}
    if none:
        row["growth"] = round(statistics.median(map(operator.truediv, times[mode], none)) - 1, 4)
    if mode == "kv":
        row["codec"] = options.codec
        row["host_ms"] = round(1e3 * statistics.median(sum(one.values()) for one in host), 3)
        row["host_us"] = {name: round(1e6 * statistics.median(one[name] for one in host))
                          for name in HookTime.HOOKS}
        if "ceiling" in times:
            row["over_ceiling_ms"] = round(1e3 * statistics.median(
                map(operator.sub, times["kv"], times["ceiling"])), 3)
            row["ceiling_ms"] = round(1e3 * statistics.median(times["ceiling"]), 3)
    return row


if __name__ == "__main__":
    main("ttft")
