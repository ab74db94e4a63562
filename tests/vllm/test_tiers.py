"""More KV than the arena holds: it is copied up before its requests are scheduled. On a CPU, which has
no arena, through the path of a device, where its cache has strides."""

import random

import pytest
from conftest import DEVICE, Engine, assert_same, key_of

USERS, FACTS, TOKENS = 6, 10, 30
TOKEN_BYTES = 2 * 4 * 2 * (64 if DEVICE == "cuda" else 32) * 4  # the tiny model's, in f32


@pytest.fixture(scope="module")
def engine(tiny_model, tmp_path_factory):
    from inferscale.vllm.worker import WorkerSide

    devices = WorkerSide.devices
    if DEVICE == "cpu":
        WorkerSide.devices = ("cpu",)
    # A third of all facts: two users' worth, of which one and a half may be kept for requests.
    arena = USERS * FACTS * TOKENS * TOKEN_BYTES // 3
    folder = tmp_path_factory.mktemp("engine")
    engine = Engine(tiny_model, folder, block_size=32, max_num_batched_tokens=512,
                    extra={"gpu_bytes": str(arena), "pinned_bytes": str(arena),
                           "folder": str(folder / "kv")})
    WorkerSide.devices = devices
    if engine.worker.refusal:
        pytest.skip(engine.worker.refusal)
    engine.probe()
    yield engine
    engine.close()


def ids(count: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(10, 500) for _ in range(count)]


def memory(user: int, facts: int = FACTS):
    prompt = ids(facts * TOKENS, 1000 + user)
    blocks = [(key_of("tiers", user, facts, i), i * TOKENS, (i + 1) * TOKENS)
              for i in range(facts)]
    return prompt + ids(7, user), blocks


@pytest.fixture(scope="module")
def answers(engine):
    """What a cold engine says to each user, whose facts are all captured then."""
    cold = {}
    for user in range(USERS):
        prompt, blocks = memory(user)
        cold[user] = engine.run(prompt, tokens=4)
        said = engine.run(prompt, "capture", blocks)[3]
        assert said["captured_blocks"] == FACTS
    return cold


def counters(engine):
    return engine.scheduler.native.counters()


def at_rest(engine) -> bool:
    now = counters(engine)
    return now["pins"] == now["waiting"] == now["kept_bytes"] == 0


def test_users_in_turn_get_the_same_answers_as_from_a_large_arena(engine, answers):
    before = counters(engine)
    for user in [*range(USERS), *range(USERS)]:
        prompt, blocks = memory(user)
        tokens, logprobs, cached, said = engine.run(prompt, "inject", blocks, tokens=4)
        assert (cached, said["injected_tokens"]) == (FACTS * TOKENS, FACTS * TOKENS)
        assert said["fallback"] == {}
        assert_same((tokens, logprobs), answers[user])
        assert at_rest(engine)
    now = counters(engine)
    assert now["waits"] - before["waits"] >= USERS
    assert now["waits_given_up"] == 0 and now["load_failures"] == 0
    device = engine.worker.native.device_counters()
    assert device["promotions"] >= FACTS * USERS
    assert device["pinned_hits"] + device["pinned_misses"] >= device["promotions"]


def test_a_user_whose_facts_are_there_does_not_wait(engine, answers):
    prompt, blocks = memory(0)
    engine.run(prompt, "inject", blocks)
    before = counters(engine)["waits"]
    engine.run(prompt, "inject", blocks)
    assert counters(engine)["waits"] == before


def test_all_users_at_once_take_turns(engine, answers):
    from vllm import SamplingParams

    requests, sampling = [], []
    for user in [*range(USERS), *range(USERS)]:
        prompt, blocks = memory(user)
        salt = engine.fresh_salt()
        transfer = engine.transfer("inject", prompt, blocks, salt)
        requests.append({"prompt_token_ids": prompt, "cache_salt": salt})
        sampling.append(SamplingParams(
            temperature=0, max_tokens=4, logprobs=5, detokenize=False, ignore_eos=True,
            extra_args={"kv_transfer_params": {"inferscale": transfer}}))
    for number, output in enumerate(engine.llm.generate(requests, sampling, use_tqdm=False)):
        said = output.kv_transfer_params["inferscale"]
        assert said["injected_tokens"] == FACTS * TOKENS, said
        answer = output.outputs[0]
        logprobs = [{i: p.logprob for i, p in place.items()} for place in answer.logprobs]
        assert_same((list(answer.token_ids), logprobs), answers[number % USERS])
    assert at_rest(engine)
    assert counters(engine)["waits_given_up"] == 0


def test_aborted_while_it_waits_it_leaves_nothing_behind(engine, answers):
    from vllm import SamplingParams

    core = engine.llm.llm_engine
    aborted = 0
    for number in range(4 * USERS):
        prompt, blocks = memory(number % USERS)
        salt = engine.fresh_salt()
        transfer = engine.transfer("inject", prompt, blocks, salt)
        core.add_request(f"abort-{number}", {"prompt_token_ids": prompt, "cache_salt": salt},
                         SamplingParams(temperature=0, max_tokens=4, detokenize=False,
                                        extra_args={"kv_transfer_params": {"inferscale": transfer}}))
        core.step()
        aborted += counters(engine)["waiting"]
        # Its promotion is on its way, done, or given to the next one.
        core.abort_request([f"abort-{number}"], internal=False)
        while core.has_unfinished_requests():
            core.step()
        assert at_rest(engine)
    assert aborted >= USERS
    prompt, blocks = memory(1)
    tokens, logprobs, _, said = engine.run(prompt, "inject", blocks, tokens=4)
    assert said["injected_tokens"] == FACTS * TOKENS
    assert_same((tokens, logprobs), answers[1])


def test_a_request_larger_than_the_arena_is_loaded_when_it_is_scheduled(engine):
    prompt, blocks = memory(50, facts=2 * FACTS + 5)
    cold = engine.run(prompt, tokens=4)
    engine.run(prompt, "capture", blocks)
    before = counters(engine)["waits_given_up"]
    tokens, logprobs, _, said = engine.run(prompt, "inject", blocks, tokens=4)
    assert said["injected_tokens"] == len(blocks) * TOKENS
    assert_same((tokens, logprobs), cold)
    assert counters(engine)["waits_given_up"] == before + 1
    assert at_rest(engine)


def test_erased_while_it_waits_it_is_computed(engine, answers):
    prompt, blocks = memory(60)
    cold = engine.run(prompt, tokens=4)
    engine.run(prompt, "capture", blocks)
    engine.worker.native.flush()
    for user in range(3):  # evict it
        engine.run(memory(user)[0], "inject", memory(user)[1])
    native = engine.scheduler.native
    original = type(native).matched_tokens
    asked = []

    class Erasing:
        """Erases a block as soon as the request waits."""

        def __getattr__(self, name):
            return getattr(native, name)

        def matched_tokens(self, *arguments):
            answer = original(native, *arguments)
            asked.append(answer)
            if answer is None and len(asked) == 1:
                native.erase([blocks[3][0]])
            return answer

    engine.scheduler.native = Erasing()
    try:
        tokens, logprobs, _, said = engine.run(prompt, "inject", blocks, tokens=4)
    finally:
        engine.scheduler.native = native
    assert asked[0] is None
    assert said["injected_tokens"] == 3 * TOKENS
    assert_same((tokens, logprobs), cold)
    assert at_rest(engine)
