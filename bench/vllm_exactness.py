"""Injected KV against the engine's own, in the engine's own cache: exactness.json.

Facts injected at their own positions: keys and values of every layer beside those of a cold prefill of
the same prompt, and the greedy tokens of both. Facts injected elsewhere: the keys of layer 0, which
depend on token and position alone, beside the engine's own at the new places. Errors are relative to
the root mean square of a layer's keys or values.
"""

import torch
from vllm_common import Results, main

LENGTHS = (1, 15, 16, 17, 31, 33, 100, 188)


def watch(engine) -> dict[str, object]:
    """Keeps what the cache holds of each request's prompt after its pass."""
    seen = {"request": "", "tokens": 0, "rows": None}
    manager = engine.llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager
    scheduler = next(c for c in engine.connectors if c.scheduler is not None)
    worker = next(c for c in engine.connectors if c.worker is not None)
    allocated, save = scheduler.update_state_after_alloc, worker.wait_for_save

    def update_state_after_alloc(request, blocks, external):
        seen.update(request=request.request_id, tokens=len(request.prompt_token_ids), rows=None)
        return allocated(request, blocks, external)

    def wait_for_save():
        save()
        size = engine.worker.cache.block_slots
        table = manager.get_block_ids(seen["request"])[0] if seen["rows"] is None else []
        if len(table) * size >= seen["tokens"] > 0:
            slots = [table[p // size] * size + p % size for p in range(seen["tokens"])]
            seen["rows"] = engine.worker.cache.read(torch.tensor(slots))

    scheduler.update_state_after_alloc, worker.wait_for_save = update_state_after_alloc, wait_for_save
    seen["stop"] = lambda: (setattr(scheduler, "update_state_after_alloc", allocated),
                            setattr(worker, "wait_for_save", save))
    return seen


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the layer's root mean square, of the worst layer."""
    scale = expected.flatten(1).pow(2).mean(1).sqrt().clamp_min(1e-12)
    return float(((got - expected).flatten(1).abs().amax(1) / scale).max())


def run(engine, options) -> None:
    results = Results(options.out / "exactness.json", ("shape", "what", "codec"))
    seen = watch(engine)
    facts = [engine.ids(length) for length in LENGTHS]
    prompt, blocks = engine.place(facts)
    tail = engine.ids(40)
    engine.capture(facts)

    reasons = []

    def answer(*arguments):
        output = engine.llm.generate(*engine.request(*arguments, tokens=16), use_tqdm=False)[0]
        said = (output.kv_transfer_params or {}).get("inferscale", {})
        reasons.append(output.outputs[0].finish_reason)
        return list(output.outputs[0].token_ids), seen["rows"], said

    cold_tokens, cold, _ = answer([*prompt, *tail])
    again_tokens, again, _ = answer([*prompt, *tail])
    tokens, rows, said = answer([*prompt, *tail], "inject", blocks)
    count = len(prompt)
    results.add({
        "shape": options.shape, "what": "own positions", "codec": options.codec,
        "injected_tokens": said["injected_tokens"], "of": count,
        "key_error": error(rows[0][:, :count], cold[0][:, :count]),
        "value_error": error(rows[1][:, :count], cold[1][:, :count]),
        "key_error_of_a_second_prefill": error(again[0][:, :count], cold[0][:, :count]),
        "same_greedy_tokens": sum(a == b for a, b in zip(tokens, cold_tokens, strict=True)),
        "same_of_a_second_prefill": sum(a == b for a, b in zip(again_tokens, cold_tokens,
                                                               strict=True)),
        "greedy_tokens": len(tokens)})

    front = engine.ids(3000)
    engine.capture([front])
    moved, moved_blocks = engine.place([front, *reversed(facts)])
    _, cold, _ = answer([*moved, *tail])
    _, rows, said = answer([*moved, *tail], "inject", moved_blocks)
    begin, end = len(front), len(moved)
    results.add({
        "shape": options.shape, "what": "moved, layer 0", "codec": options.codec,
        "injected_tokens": said["injected_tokens"], "of": end, "positions": [begin, end],
        "key_error": error(rows[0][:1, begin:end], cold[0][:1, begin:end]),
        "value_error": error(rows[1][:1, begin:end], cold[1][:1, begin:end])})

    # A load that breaks after it was promised: computed again, or, where vLLM would do so wrongly, an
    # error.
    if engine.worker.on_device:
        stream, engine.worker._stream = engine.worker._stream, lambda: 1 / 0
        before = engine.llm.generate(*engine.request([*prompt, *tail], tokens=16), use_tqdm=False)
        try:
            broken, _, said = answer([*prompt, *tail], "inject", blocks)
        finally:
            engine.worker._stream = stream
        for connector in engine.connectors:
            connector.failures = 0
        expected = list(before[0].outputs[0].token_ids)
        results.add({"shape": options.shape, "codec": options.codec,
                     "what": "a failed load, " + ("synchronous scheduling"
                                                  if options.no_async_scheduling
                                                  else "asynchronous scheduling"),
                     "same_greedy_tokens": sum(map(int.__eq__, broken, expected)),
                     "greedy_tokens": len(broken), "finish_reason": reasons[-1]})
    seen["stop"]()


if __name__ == "__main__":
    main("exactness")
