"""Models with sliding windows: in every layer (vLLM frees blocks behind the window), and in some of
them, where vLLM keeps all blocks if its hybrid manager is disabled."""

import contextlib
import time

import pytest
import torch
import vllm
from conftest import (
    assert_same,
    DEVICE,
    difference,
    DTYPE,
    Engine,
    EXACT,
    key_of,
    lost_before_load,
    write_tiny_gemma3,
    write_tiny_mistral,
)
from test_bookkeeping import BLOCK, ids, pins, spans
from test_preemption import generate
from test_rotation import error_of, keys_of

WINDOW = 48
FACT = 40


def start(kind, folder, **options):
    if DEVICE == "cuda":
        # FlashAttention in a graph of a whole pass answers wrongly as long as a prompt is shorter than the
        # window (vLLM 0.24 without any connector; without that graph, or with Triton, it is right).
        options["compilation_config"] = {"cudagraph_mode": "PIECEWISE"}
    write = write_tiny_gemma3 if kind == "some layers" else write_tiny_mistral
    # 1,056: a probe of 1,025 tokens is one pass. 70 blocks of 32 tokens: four long prompts of other
    # tokens share them only because some are freed.
    return Engine(write(folder, WINDOW), folder, block_size=BLOCK, max_num_batched_tokens=1056,
                  num_gpu_blocks_override=70, **options)


@pytest.fixture(scope="module", params=["some layers", "every layer"])
def engine(request, tmp_path_factory):
    flag = {"disable_hybrid_kv_cache_manager": True} if request.param == "some layers" else {}
    engine = start(request.param, tmp_path_factory.mktemp("window"), **flag)
    engine.frees = request.param == "every layer"
    try:
        engine.probe()
        yield engine
    finally:  # or the next engine gets this one's worker
        engine.close()


@contextlib.contextmanager
def passes_of(engine, tokens):
    """A prompt is computed in passes of so many tokens."""
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    before, scheduler.max_num_scheduled_tokens = scheduler.max_num_scheduled_tokens, tokens
    try:
        yield
    finally:
        scheduler.max_num_scheduled_tokens = before


def facts(name, count):
    return [(key_of(name, i), b, e) for i, (b, e) in enumerate(spans(*[FACT] * count))]


def null_block(engine):
    return [part.clone() for part in engine.worker.cache.read(torch.arange(BLOCK))]


@pytest.mark.skipif(DEVICE == "cuda", reason="every case of some layers is one there")
def test_layers_that_vllm_lists_one_by_one_are_served(tmp_path, monkeypatch):
    """As on a GPU, whose attention reads by the stride of a block: vLLM 0.24 forgets that of the layers
    with a window, and so has a specification a layer. Before the others' engine: a process has one worker's connector."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    monkeypatch.setattr(CPUAttentionBackend, "indexes_kv_by_block_stride",
                        classmethod(lambda _: True), raising=False)
    engine = start("some layers", tmp_path, disable_hybrid_kv_cache_manager=True)
    try:
        groups = engine.worker.cache_config.kv_cache_groups
        assert vllm.__version__ > "0.24.0" or hasattr(groups[0].kv_cache_spec, "kv_cache_specs")
        engine.probe()
        prompt, blocks = ids(300, 795), facts("one by one", 7)
        cold = engine.run(prompt, tokens=3)
        engine.run(prompt, "capture", blocks)
        tokens, logprobs, cached, _ = engine.run(prompt, "inject", blocks, tokens=3)
        assert cached == 280
        assert_same((tokens, logprobs), cold)
    finally:
        engine.close()


@pytest.mark.parametrize("passes", [1056, 96])
def test_kv_at_its_own_place_equals_a_cold_prefill(engine, passes):
    prompt, blocks = ids(1490, 700 + passes), facts(("own", passes), 37)
    null = null_block(engine)
    with passes_of(engine, passes):
        cold = engine.run(prompt, tokens=12)
        said = engine.run(prompt, "capture", blocks)[3]
        assert (said["captured_blocks"], said["fallback"]) == (37, {})
        tokens, logprobs, cached, said = engine.run(prompt, "inject", blocks, tokens=12)
    assert (cached, said["injected_tokens"], said["fallback"]) == (1480, 1480, {})
    assert_same((tokens, logprobs), cold)
    assert difference(logprobs, cold[1]) < EXACT
    assert all(torch.equal(*pair) for pair in zip(null, null_block(engine), strict=True))
    assert pins(engine) == 0


@pytest.mark.parametrize("length", [20, 47, 48, 49, 95, 96, 97, 130])
def test_prompts_of_about_a_window(engine, length):
    prompt, blocks = ids(length + 7, length), [(key_of("about", length), 0, length)]
    cold = engine.run(prompt, tokens=3)
    engine.run(prompt, "capture", blocks)
    tokens, logprobs, cached, _ = engine.run(prompt, "inject", blocks, tokens=3)
    assert cached == length
    assert_same((tokens, logprobs), cold)


def test_injects_behind_a_local_hit(engine):
    prompt, blocks, salt = ids(700, 710), facts("hit", 17), "local hit"
    engine.run(prompt, "capture", blocks)
    cold = engine.run(prompt, tokens=6)
    first = engine.run(prompt[:330], "inject", blocks[:8], salt=salt)
    assert first[2] == 320
    tokens, logprobs, cached, said = engine.run(prompt, "inject", blocks, salt=salt, tokens=6)
    assert (cached, said["injected_tokens"]) == (680, 680 - 320)
    assert_same((tokens, logprobs), cold)


def test_what_is_injected_serves_the_prefix_cache_too(engine):
    prompt, blocks, salt = ids(500, 720), facts("prefix", 12), "prefix"
    engine.run(prompt, "capture", blocks)
    engine.run(prompt[:490], "inject", blocks, salt=salt)
    longer = prompt + ids(60, 721)
    cold = engine.run(longer, tokens=6)
    tokens, logprobs, cached, _ = engine.run(longer, salt=salt, tokens=6)
    assert cached >= 480
    assert_same((tokens, logprobs), cold)


def test_facts_moved_to_other_places_are_turned_as_each_layer_turns(engine):
    """Every token of a prompt of one token has the same keys before rotation, in every layer."""
    engine.run([7] * 200, "capture", [(key_of("moved"), 101, 101 + FACT)])
    prompt = [7] * 800 + ids(9, 730)
    cold = engine.run(prompt, tokens=6)
    blocks = [(key_of("moved"), b, e) for b, e in spans(*[FACT] * 20)]
    tokens, logprobs, cached, _ = engine.run(prompt, "inject", blocks, tokens=6)
    assert cached == 800
    assert_same((tokens, logprobs), cold)
    # Their values being equal, an answer tells little of their keys.
    own, _ = keys_of(engine, prompt, 760, 800)
    moved, said = keys_of(engine, prompt, 760, 800, "inject", blocks)
    assert said["injected_tokens"] == 800
    assert error_of(moved, own) < (2e-4 if DTYPE == "float32" else 2**-7)


def test_a_load_that_fails_gives_no_wrong_answer(engine):
    prompt, blocks = ids(300, 740), facts("fails", 7)
    engine.run(prompt, "capture", blocks)
    cold = engine.run(prompt, tokens=5)
    assert not (engine.recomputes and engine.frees)  # vLLM cannot compute what it skipped
    salt, null = "fails", null_block(engine)
    with lost_before_load(engine.worker, key_of("fails", 6)) as lost:
        broken = engine.run(prompt, "inject", blocks, salt=salt, tokens=5)
    assert lost
    engine.assert_recovered(broken, cold)
    again = engine.run(prompt, "inject", blocks, salt=salt, tokens=5)
    assert_same(again, cold)  # nothing of it was left in the prefix cache
    assert all(torch.equal(*pair) for pair in zip(null, null_block(engine), strict=True))
    assert pins(engine) == 0


def test_who_shares_a_pass_behind_a_load_that_fails_gives_no_wrong_answer_either(engine):
    """A request that finds new blocks of those before it in the prefix cache holds none of what was to be
    loaded: that is behind its window."""
    first, blocks, salt = ids(300, 790), facts("shared", 7), "shared"
    second = first + ids(60, 791)
    prompts = [first, second, second + ids(9, 792)]
    engine.run(first, "capture", blocks)
    cold = [engine.run(prompt) for prompt in prompts]
    with lost_before_load(engine.worker, key_of("shared", 6)) as lost:
        outputs = generate(engine, prompts, "inject", [blocks] * 3, 1, shared_salt=salt)
    assert lost
    for output, expected in zip(outputs, cold, strict=True):
        got = [{i: p.logprob for i, p in place.items()} for place in output.outputs[0].logprobs or []]
        engine.assert_recovered((list(output.outputs[0].token_ids), got), expected)
    for prompt, expected in zip(prompts, cold, strict=True):
        assert_same(engine.run(prompt, salt=salt), expected)
    assert pins(engine) == 0


def test_blocks_freed_before_an_abort_do_not_stay_in_the_prefix_cache(engine, monkeypatch):
    """What was computed behind a load that failed, where the pass is longer than the window."""
    from vllm import SamplingParams
    from vllm.v1.request import RequestStatus

    prompt, blocks, salt = ids(300, 780), [(key_of("aborted window"), 0, 100)], "aborted window"
    engine.run(prompt, "capture", blocks)
    cold = [engine.run(prompt[:cut], tokens=3) for cut in (200, 300)]
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    side = engine.worker if engine.worker.on_device else engine.worker.cache

    def broken(*_):  # as the engine does with aborts that arrive during a pass
        scheduler.finish_requests([running.request_id for running in scheduler.running],
                                  RequestStatus.FINISHED_ABORTED)
        raise RuntimeError("on purpose")

    sampling = SamplingParams(temperature=0, max_tokens=3, detokenize=False, extra_args={
        "kv_transfer_params": {"inferscale": engine.transfer("inject", prompt, blocks, salt)}})
    failures = [connector.failures for connector in engine.connectors]
    with monkeypatch.context() as patch:
        patch.setattr(side, "_stream" if engine.worker.on_device else "write", broken)
        engine.llm.llm_engine.add_request(
            salt, {"prompt_token_ids": prompt, "cache_salt": salt}, sampling)
        engine.llm.llm_engine.step()
    engine.llm.llm_engine.abort_request([salt])
    assert [c.failures for c in engine.connectors] != failures
    for connector, before in zip(engine.connectors, failures, strict=True):
        connector.failures = before
    for cut, expected in zip((200, 300), cold, strict=True):
        got = engine.run(prompt[:cut], salt=salt, tokens=3)
        assert_same(got, expected)
        assert difference(got[1], expected[1]) < EXACT
    assert pins(engine) == 0


def test_a_run_that_outgrows_the_window_is_not_captured_from_anothers_blocks(engine):
    prompts = [ids(1200, 750 + i) for i in range(4)]
    runs = [[(key_of("grow", i, 0), 0, FACT), (key_of("grow", i, 1), FACT, 440),
             (key_of("grow", i, 2), 440, 480)] for i in range(4)]
    cold = engine.run(prompts[0], tokens=3)
    with passes_of(engine, 128):
        outputs = generate(engine, prompts, "capture", runs, 1)
    for output in outputs:
        said = output.kv_transfer_params["inferscale"]
        assert said["captured_blocks"] == (2 if engine.frees else 3)
        assert said["fallback"] == ({"outside_window": 1} if engine.frees else {})
    # Served as text from there on.
    tokens, logprobs, cached, said = engine.run(prompts[0], "inject", runs[0], tokens=3)
    assert cached == (FACT if engine.frees else 480)
    assert said["fallback"] == ({"not_ready": 1, "not_contiguous": 1} if engine.frees else {})
    assert_same((tokens, logprobs), cold)


def preempt_at(engine, monkeypatch, steps) -> list[str]:
    """All that run are preempted before these steps, and come back behind what the prefix cache still
    shows of them."""
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    original, calls, seen = type(scheduler).schedule, [], []

    def schedule(*arguments, **options):
        calls.append(1)
        if len(calls) in steps:
            while scheduler.running:
                request = scheduler.running.pop()
                seen.append(request.request_id)
                scheduler._preempt_request(request, time.monotonic())
            scheduler.prev_step_scheduled_req_ids.clear()
        return original(scheduler, *arguments, **options)

    monkeypatch.setattr(scheduler, "schedule", schedule)
    return seen


@pytest.mark.parametrize("steps", [(), (4, 6, 11)])
def test_runs_within_the_window_are_exact_while_blocks_change_hands(engine, monkeypatch, steps):
    prompts = [ids(900, 760 + 10 * len(steps) + i) for i in range(4)]
    blocks = [facts(("hands", steps, i), 22) for i in range(4)]
    cold = [engine.run(prompt, tokens=8) for prompt in prompts]
    preempted = preempt_at(engine, monkeypatch, steps)
    with passes_of(engine, 200):
        outputs = generate(engine, prompts, "capture", blocks, 1)
        assert all(o.kv_transfer_params["inferscale"]["captured_blocks"] == 22 for o in outputs)
        assert bool(preempted) == bool(steps)
        preempted = preempt_at(engine, monkeypatch, steps)
        outputs = generate(engine, prompts, "inject", blocks, 8)
        assert bool(preempted) == bool(steps)
    for output, expected in zip(outputs, cold, strict=True):
        assert output.kv_transfer_params["inferscale"]["fallback"] == {}
        got = [{i: p.logprob for i, p in place.items()} for place in output.outputs[0].logprobs]
        assert_same((list(output.outputs[0].token_ids), got), expected)
    assert pins(engine) == 0


def test_layers_that_use_the_kv_of_others_are_refused(engine, monkeypatch):
    from inferscale import _native
    from inferscale.vllm.worker import LAYER_NUMBER, WorkerSide

    worker = engine.worker
    names = sorted(worker.cache_config.kv_cache_groups[0].layer_names,
                   key=lambda name: int(LAYER_NUMBER.search(name)[1]))
    context = worker.config.compilation_config.static_forward_context
    monkeypatch.setattr(context[names[-1]], "kv_sharing_target_layer_name", names[0], raising=False)
    other = WorkerSide(worker.config, worker.cache_config, worker.settings)
    other.register(dict(zip(names, worker.cache.caches, strict=True)))
    scheduler = _native.Scheduler(secret=b"x" * 16, budget_bytes=1, token_bytes=1, ranks=1)
    scheduler.take_report(other.report())
    assert "KV of others" in scheduler.counters()["refusal"]
    # It still carries out plans, of which none but erasures come.
    plan = scheduler.erase([key_of("nothing")])
    other.start_load(scheduler.take_plan())
    other.save()
    scheduler.take_report(other.report())
    assert scheduler.acknowledged_plan == plan


def test_a_model_of_both_kinds_is_refused_with_what_to_set(tmp_path):
    from inferscale.vllm.control import ControlClient

    engine = start("some layers", tmp_path, max_model_len=512,
                   extra={"control_socket": str(tmp_path / "socket")})
    try:
        assert "--disable-hybrid-kv-cache-manager" in engine.scheduler.refusal
        prompt = ids(100, 770)
        cold = engine.run(prompt, tokens=3)
        got = engine.run(prompt, "inject", [(key_of("refused"), 0, 40)], tokens=3)
        assert got[3] == {"injected_tokens": 0, "captured_blocks": 0,
                          "fallback": {"model_unsupported": 1}}
        assert_same(got, cold)
        with ControlClient(str(tmp_path / "socket"), engine.secret) as client:
            said = client.call("hello")
            assert "--disable-hybrid-kv-cache-manager" in said["refusal"]
            assert not said["rotation_known"]
            assert client.call("presence", keys=["00" * 16])["ready"] == [False]
            erased = client.call("erase", keys=["00" * 16])
            assert erased["plan"] <= erased["acknowledged"]
    finally:
        engine.close()
