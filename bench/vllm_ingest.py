"""What chats notice of facts being encoded meanwhile, on an unmodified vLLM: ingest.json.

Four users chat, one request of each at a time: their own facts injected, 64 new tokens, 16 output
tokens. Modes: `quiet`: nothing else; `ingest_1`: beside them one encoding after the other, which is
what the gateway sends while answers are under way; `ingest_4`: four at a time, what it sends when
there are none. An encoding is ten facts behind 300 tokens that are in the prefix cache.
`python bench/vllm_ingest.py --gpu-bytes 6G --host-bytes 32G`
"""

from vllm_common import TAIL_TOKENS, Results, left, main, percentiles

OUTPUT_TOKENS, CHATS, CONTEXT_TOKENS, FACTS = 16, 4, 300, 10
MODES = {"quiet": 0, "ingest_1": 1, "ingest_4": 4}


def run(engine, options) -> None:
    results = Results(options.out / "ingest.json", ("shape", "mode", "fact_tokens"))
    memories = [engine.facts(tokens=options.fact_tokens) for _ in range(CHATS)]
    for memory in memories:
        engine.capture(memory)
    engine.worker.native.flush()

    def chat(user):
        prompt, blocks = engine.place(memories[user % CHATS])
        return engine.request([*prompt, *engine.ids(TAIL_TOKENS)], "inject", blocks,
                              tokens=OUTPUT_TOKENS)

    def encodings():
        context, number = engine.ids(CONTEXT_TOKENS), 0
        while True:
            number += 1
            facts = engine.facts(FACTS)
            prompt, blocks = engine.place([context, *facts])
            yield engine.request([*prompt, 7], "capture", blocks[1:], salt="encoding")

    count = 8 * options.repetitions
    taken = {mode: ([], 0, 0.0) for mode in MODES}
    # Turn by turn, so that what drifts hits all of them alike.
    for turn in range(-1, 2):
        for mode, in_flight in MODES.items():
            if left(options) < 15:
                print("ingest: no time left", flush=True)
                break
            seconds, first, encoded = engine.closed_loop(
                [chat(user) for user in range(count if turn >= 0 else CHATS)], CHATS,
                encodings(), in_flight)
            if turn >= 0:
                ttft, so_far, took = taken[mode]
                taken[mode] = (ttft + first, so_far + encoded, took + seconds)
    for mode, (ttft, encoded, seconds) in taken.items():
        if ttft:
            results.add({
                "shape": options.shape, "mode": mode, "fact_tokens": options.fact_tokens,
                "chats": CHATS, **percentiles(ttft), "requests": len(ttft),
                "requests_per_s": round(len(ttft) / seconds, 2),
                "encoded_facts_per_s": round(FACTS * encoded / seconds, 1), "codec": options.codec})


if __name__ == "__main__":
    main("ingest")
