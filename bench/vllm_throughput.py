"""Requests a second and time to first token of closed batches, on an unmodified vLLM: throughput.json.

Each user asks once, all at the same time: their own facts, 64 new tokens, 50 output tokens. Modes:
`text`: the facts are computed (`text_large_cache` with --large-cache: vLLM's cache has the arena's bytes
too); `kv` (`kv_int4`): injected; `ceiling`: the prompts are already in vLLM's prefix cache.
"""

import statistics

from vllm_common import TAIL_TOKENS, Results, left, main, name_of

OUTPUT_TOKENS = 50
# At 200 users vLLM's cache holds no longer what the ceiling asks for: seconds a round.
ROUNDS = {1: 6, 10: 6, 50: 6, 100: 8}


def run(engine, options) -> None:
    results = Results(options.out / "throughput.json",
                      ("shape", "users", "mode", "fact_tokens"))
    wanted = options.modes.split(",") if options.modes else ["text", "kv", "ceiling"]
    if options.large_cache:
        wanted = ["text"]
    names = {mode: name_of(mode, options) for mode in wanted}
    if options.large_cache:
        names["text"] = "text_large_cache"
    wanted = [mode for mode in wanted if mode != "text_cached"]
    counts = [int(count) for count in options.users.split(",")]
    memories = [engine.facts(tokens=options.fact_tokens)
                for _ in range(min(options.memories, max(counts)))]
    for memory in memories if "kv" in wanted or "ceiling" in wanted else []:
        engine.capture(memory)
    engine.worker.native.flush()  # what is still copied to host memory would be measured too
    print(f"captured; {left(options):.0f} s left", flush=True)

    def request(mode, user, round_number):
        memory, tail = memories[user % len(memories)], engine.ids(TAIL_TOKENS)
        if mode == "text":
            return engine.request([*engine.ids(options.fact_tokens), *tail], tokens=OUTPUT_TOKENS)
        prompt, blocks = engine.place(memory)
        if mode == "kv":
            return engine.request([*prompt, *tail], "inject", blocks, tokens=OUTPUT_TOKENS)
        # A user's own salt: prompts that users share are not shared in the cache.
        return engine.request([*prompt, *tail], salt=f"user {user}", tokens=OUTPUT_TOKENS)

    for users in sorted(counts):
        rounds = ROUNDS.get(users, 2)
        taken = {mode: ([], [], []) for mode in wanted}
        host = {mode: [] for mode in wanted}
        for round_number in range(-1, rounds):
            # Always in this order: two batches of injected prompts, one behind the other, would drive the
            # ceiling's out of vLLM's cache.
            for mode in wanted:
                if left(options) < 15:
                    print("throughput: no time left", flush=True)
                    return
                once = mode == "text" and users >= 50  # seconds long, and steady
                if once and round_number >= 0:
                    continue
                if once:  # it is the first of its round, and may be the engine's first of all
                    engine.batch([request(mode, user, round_number) for user in range(10)])
                requests = [request(mode, user, round_number) for user in range(users)]
                engine.hooks.clear()
                seconds, first, cached = engine.batch(requests)
                if once or round_number >= 0:  # the first one warms up, and fills the prefix cache
                    taken[mode][0].append(seconds)
                    taken[mode][1].extend(first)
                    taken[mode][2].extend(cached)
                    host[mode].append(sum(engine.hooks.seconds.values()) / users)
        for mode in wanted:
            seconds, first, cached = taken[mode]
            first.sort()
            cached = statistics.median(cached)
            if mode == "ceiling" and cached < 0.9 * options.fact_tokens:
                print(f"{users} users: no ceiling, vLLM's cache holds too few of their prompts", flush=True)
            results.add({
                "shape": options.shape, "users": users, "mode": names[mode],
                "fact_tokens": options.fact_tokens, "output_tokens": OUTPUT_TOKENS,
                "requests_per_s": round(users * len(seconds) / sum(seconds), 2),
                "ttft_p50_ms": round(1e3 * first[len(first) // 2], 2),
                "ttft_p99_ms": round(1e3 * first[int(0.99 * (len(first) - 1))], 2),
                "rounds": len(seconds), "memories": len(memories),
                # Found in vLLM's prefix cache or injected, of a request (median).
                "cached_tokens": cached,
                # The connector's hooks up to the launch, in every step of these requests.
                **({"codec": options.codec,
                    "host_ms": round(1e3 * sum(host[mode]) / len(host[mode]), 3)}
                   if mode == "kv" else {})})


if __name__ == "__main__":
    main("throughput")
