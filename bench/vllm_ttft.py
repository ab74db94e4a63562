"""Time to first token against the number of facts, on an unmodified vLLM: ttft.json.

Modes: `text`: the facts are new to the engine (prefix caching is on, and holds the system text);
`text_cached`: the same facts every time, from the prefix cache; `ceiling`: the same again, measured as
its own series, since that is what injection is compared with; `kv` (`kv_int4` with that codec): the
facts' stored KV is injected, under a fresh salt each time. 64 tokens are new in every request.
One repetition runs every mode once, so that what drifts hits all of them alike.
"""

import statistics

from vllm_common import SYSTEM_TOKENS, TAIL_TOKENS, Results, left, main, summary


def run(engine, options) -> None:
    results = Results(options.out / "ttft.json", ("shape", "k", "mode", "system_tokens"))
    kv = "kv_int4" if options.codec == "int4" else "kv"
    wanted = options.modes.split(",") if options.modes else ["text", "text_cached", "kv", "ceiling"]
    hooks = engine.hooks
    counts = [int(k) for k in options.facts.split(",")]
    system, facts = engine.ids(SYSTEM_TOKENS), engine.facts(max(counts))
    engine.capture([system])
    engine.capture(facts)
    engine.worker.native.flush()  # what is still copied to host memory would be measured too
    for system_tokens in (0, SYSTEM_TOKENS):
        for k in counts:
            if left(options) < 20:
                print("ttft: no time left", flush=True)
                return
            front = [system] if system_tokens else []
            parts = [*front, *facts[:k]]
            prompt, blocks = engine.place(parts)

            def request(mode):
                tail = engine.ids(TAIL_TOKENS)
                if mode == "text":
                    fresh = engine.place([*front, *(engine.ids(len(f)) for f in facts[:k])])[0]
                    return engine.request([*fresh, *tail], salt="text")
                if mode == "kv":
                    return engine.request([*prompt, *tail], "inject", blocks)
                return engine.request([*prompt, *tail], salt="cached " + mode)

            times = {mode: [] for mode in wanted}
            extra = {mode: {"injected_tokens": 0, "cached_tokens": 0} for mode in wanted}
            host = []
            for repetition in range(-2, options.repetitions):
                for mode in wanted:
                    ready = request(mode)
                    hooks.clear()
                    seconds, output = engine.first_token(ready)
                    if repetition < 0:  # warms up; also fills the prefix cache
                        continue
                    times[mode].append(seconds)
                    said = (output.kv_transfer_params or {}).get("inferscale", {})
                    extra[mode] = {"injected_tokens": said.get("injected_tokens", 0),
                                   "cached_tokens": output.num_cached_tokens}
                    if mode == "kv":
                        host.append(dict(hooks.seconds))
                        if k and said.get("injected_tokens") != len(prompt):
                            raise RuntimeError(f"not injected: {said}")
            for mode in wanted:
                row = {"shape": options.shape, "k": k, "mode": kv if mode == "kv" else mode,
                       "system_tokens": system_tokens, "prompt_tokens": len(prompt) + TAIL_TOKENS,
                       **summary(times[mode]), **extra[mode], "repetitions": len(times[mode])}
                if mode == "kv":
                    row["codec"] = options.codec
                    row["host_ms"] = round(
                        1e3 * statistics.median(sum(one.values()) for one in host), 3)
                    row["host_us"] = {name: round(1e6 * statistics.median(one[name] for one in host))
                                      for name in hooks.HOOKS}
                    if "ceiling" in wanted:
                        over = [a - b for a, b in zip(times["kv"], times["ceiling"], strict=True)]
                        row["over_ceiling_ms"] = round(1e3 * statistics.median(over), 3)
                        row["ceiling_ms"] = round(1e3 * statistics.median(times["ceiling"]), 3)
                results.add(row)


if __name__ == "__main__":
    main("ttft")
