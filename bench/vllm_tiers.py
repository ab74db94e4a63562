"""More users' facts than the GPU's arena holds, on an unmodified vLLM: rows of throughput.json.

As many users ask as `--users` says, each at once followed by the next one: their own facts, 64 new
tokens, 50 output tokens. All facts together are four times the arena (`--gpu-bytes`). Modes:
`tiers_kv_cold`: every user in turn, so that facts have always left the arena when they are asked for
again, and come up from host memory; `tiers_kv_resident`: a few users whose facts stay in it;
`tiers_text`, `tiers_ceiling`: every user, computed, and from vLLM's prefix cache.
`python bench/vllm_tiers.py --gpu-bytes 6G --pinned-bytes 28G --host-bytes 40G --users 10,100`
"""

from vllm_common import TAIL_TOKENS, Results, left, main, percentiles

OUTPUT_TOKENS = 50
MODES = ("tiers_kv_resident", "tiers_kv_cold", "tiers_text", "tiers_ceiling")


def run(engine, options) -> None:
    from inferscale import _native
    from inferscale.vllm.settings import parse_size

    results = Results(options.out / "throughput.json",
                      ("shape", "users", "mode", "fact_tokens"))
    wanted = options.modes.split(",") if options.modes else MODES
    shape = engine.worker.cache_config.kv_cache_groups[0]
    spec = shape.kv_cache_spec
    memory_bytes = options.fact_tokens * _native.token_bytes(
        options.codec, len(shape.layer_names), spec.num_kv_heads, spec.head_size)
    arena = parse_size("gpu_bytes", options.gpu_bytes)
    resident, count = arena * 6 // 10 // memory_bytes, -(-4 * arena // memory_bytes)
    if resident < 1 or count > options.memories:
        least = options.memories * memory_bytes // 4 >> 20
        raise RuntimeError(f"{count} users' facts are four times the arena, and it holds {resident}: "
                           f"set --memories, or --gpu-bytes to {least}M or less")
    memories = [engine.facts(tokens=options.fact_tokens) for _ in range(count)]
    for memory in memories:
        engine.capture(memory)
    engine.worker.native.flush()  # what is still copied to host memory would be measured too
    print(f"captured {count} users, {resident} stay resident; {left(options):.0f} s left", flush=True)

    def request(mode, number):
        tail = engine.ids(TAIL_TOKENS)
        if mode == "tiers_text":
            return engine.request([*engine.ids(options.fact_tokens), *tail], tokens=OUTPUT_TOKENS)
        user = number % (resident if mode == "tiers_kv_resident" else count)
        prompt, blocks = engine.place(memories[user])
        if mode == "tiers_ceiling":
            return engine.request([*prompt, *tail], salt=f"user {user}", tokens=OUTPUT_TOKENS)
        return engine.request([*prompt, *tail], "inject", blocks, tokens=OUTPUT_TOKENS)

    for users in sorted(int(users) for users in options.users.split(",")):
        for mode in wanted:
            if left(options) < 15:
                print("tiers: no time left", flush=True)
                return
            # Once each of what warms up: the arena, pinned memory, or the prefix cache.
            warm = {"tiers_kv_resident": resident, "tiers_text": 1}.get(mode, count)
            engine.closed_loop([request(mode, number) for number in range(warm)], users)
            total = users * 2 if mode == "tiers_text" and users >= 50 else max(users * 3, 20)
            before = {**engine.worker.native.device_counters(), **engine.scheduler.native.counters()}
            seconds, first, _ = engine.closed_loop(
                [request(mode, number) for number in range(total)], users)
            after = {**engine.worker.native.device_counters(), **engine.scheduler.native.counters()}
            row = {"shape": options.shape, "users": users, "mode": mode,
                   "fact_tokens": options.fact_tokens, "output_tokens": OUTPUT_TOKENS,
                   "requests_per_s": round(total / seconds, 2), **percentiles(first),
                   "requests": total, "memories": count, "arena_share": round(
                       arena / (count * memory_bytes), 3)}
            if mode.startswith("tiers_kv"):
                injected = after["injected_tokens"] - before["injected_tokens"]
                if injected != total * options.fact_tokens:
                    raise RuntimeError(f"{injected} of {total * options.fact_tokens} injected")
                row["codec"] = options.codec
                row["promoted_gb_per_s"] = round(
                    (after["promoted_bytes"] - before["promoted_bytes"]) / seconds / 1e9, 2)
                for name in ("waits", "waits_given_up", "promotions", "pinned_hits"):
                    row[name] = after[name] - before[name]
            results.add(row)


if __name__ == "__main__":
    main("tiers")
