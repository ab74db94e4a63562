"""Every case of bookkeeping on a real vLLM with a tiny random Llama."""

import functools
import pickle
import random
from types import SimpleNamespace

import pytest
from conftest import Engine, assert_same, difference, key_of, lost_before_load

BLOCK = 32  # the smallest that every version takes on a CPU


@pytest.fixture(scope="module")
def engine(tiny_model, tmp_path_factory):
    engine = Engine(tiny_model, tmp_path_factory.mktemp("engine"), block_size=BLOCK,
                    max_num_batched_tokens=256)
    engine.probe()
    yield engine
    engine.close()


def ids(count: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(10, 500) for _ in range(count)]


def spans(*lengths: int):
    begin, out = 0, []
    for length in lengths:
        out.append((begin, begin + length))
        begin += length
    return out


def pins(engine) -> int:
    return engine.scheduler.native.counters()["pins"]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 63, 65, 100, 188])
def test_kv_at_its_own_place_equals_a_cold_prefill(engine, length):
    prompt = ids(length, length) + ids(9, 1)
    blocks = [(key_of("own", length), 0, length)]
    cold = engine.run(prompt, tokens=4)
    _, _, _, said = engine.run(prompt[:length + 1], "capture", blocks)
    assert said["captured_blocks"] == 1
    tokens, logprobs, cached, said = engine.run(prompt, "inject", blocks, tokens=4)
    assert (cached, said["injected_tokens"], said["fallback"]) == (length, length, {})
    assert_same((tokens, logprobs), cold)
    assert pins(engine) == 0


def test_a_prompt_covered_whole_leaves_its_last_token_to_the_engine(engine):
    prompt = ids(32, 40)
    cold = engine.run(prompt, tokens=2)
    engine.run(prompt, "capture", [(key_of("whole"), 0, 32)])
    tokens, logprobs, cached, _ = engine.run(prompt, "inject", [(key_of("whole"), 0, 32)], tokens=2)
    assert cached == 31
    assert engine.run(prompt, "inject", [(key_of("whole"), 0, 32)])[3]["injected_tokens"] == 31
    assert_same((tokens, logprobs), cold)


@pytest.mark.parametrize("missing,expected", [(0, 0), (1, 20), (2, 45)])
def test_facts_missing_at_the_start_middle_or_end_are_computed(engine, missing, expected):
    prompt = ids(80, 50)
    cold = engine.run(prompt, tokens=3)
    places = spans(20, 25, 19)
    blocks = [(key_of("miss", missing, i), *place) for i, place in enumerate(places)]
    engine.run(prompt, "capture", [b for i, b in enumerate(blocks) if i != missing])
    tokens, logprobs, cached, said = engine.run(prompt, "inject", blocks, tokens=3)
    assert cached == expected
    behind = {"not_contiguous": 2 - missing} if missing < 2 else {}
    assert said["fallback"] == {"not_ready": 1, **behind}
    assert_same((tokens, logprobs), cold)


def test_chunked_prefill_captures_the_same_kv(engine):
    prompt = ids(900, 60)  # four passes of at most 256
    cold = engine.run(prompt, tokens=3)
    blocks = [(key_of("chunk", i), b, e) for i, (b, e) in enumerate(spans(250, 13, 300, 330))]
    _, _, _, said = engine.run(prompt, "capture", blocks)
    assert said["captured_blocks"] == 4
    tokens, logprobs, cached, _ = engine.run(prompt, "inject", blocks, tokens=3)
    assert cached == 893
    assert_same((tokens, logprobs), cold)


def test_a_capture_behind_a_prefix_hit_reads_what_the_hit_holds(engine):
    prompt, salt = ids(70, 70), "shared"
    engine.run(prompt, salt=salt)
    _, _, cached, said = engine.run(prompt, "capture", [(key_of("hit"), 0, 60)], salt=salt)
    assert cached >= BLOCK and said["captured_blocks"] == 1
    cold = engine.run(prompt, tokens=3)
    tokens, logprobs, cached, _ = engine.run(prompt, "inject", [(key_of("hit"), 0, 60)], tokens=3)
    assert cached == 60
    assert_same((tokens, logprobs), cold)


def test_injects_behind_a_local_hit(engine):
    prompt, salt = ids(90, 80), "local"
    blocks = [(key_of("behind", i), b, e) for i, (b, e) in enumerate(spans(40, 45))]
    engine.run(prompt, "capture", blocks)
    cold = engine.run(prompt, tokens=3)
    engine.run(prompt[:50], salt=salt)
    tokens, logprobs, cached, said = engine.run(prompt, "inject", blocks, salt=salt, tokens=3)
    assert cached == 85 and said["injected_tokens"] == 85 - BLOCK
    assert_same((tokens, logprobs), cold)


def test_kv_of_one_salt_never_reaches_another(engine):
    # Wrong KV on purpose: other tokens under keys that are then asked for by an exact copy's ids.
    prompt = ids(64, 90)
    engine.run(ids(10, 91) + prompt, "capture", [(key_of("pollute"), 10, 58)])
    cold = engine.run(prompt, tokens=3)
    polluted = engine.run(prompt, "inject", [(key_of("pollute"), 0, 48)], salt="polluted", tokens=3)
    assert polluted[2] == 48
    assert difference(polluted[1], cold[1]) > 0.01  # encoded behind other tokens: not the same KV
    for salt in ("somebody else", "another"):
        plain = engine.run(prompt, salt=salt, tokens=3)
        assert_same(plain, cold)


def test_somebody_elses_keys_without_the_secret_give_plain_text(engine):
    prompt = ids(64, 100)
    blocks = [(key_of("stolen"), 0, 48)]
    engine.run(prompt, "capture", blocks)
    cold = engine.run(prompt, tokens=3)
    good = engine.transfer("inject", prompt, blocks, "s")
    changed = good["request"][:-1] + ("0" if good["request"][-1] != "0" else "1")
    cases = [dict(good, mac="0" * 64), dict(good, mac=""), dict(good, request=changed),
             dict(good, request=good["request"][:-2]),
             engine.transfer("inject", prompt, blocks, "t"),
             engine.transfer("inject", prompt, blocks, "s", secret=b"another secret of 20"),
             engine.transfer("inject", prompt, blocks, "s", seconds=-5),
             engine.transfer("inject", prompt[:-1] + [9], blocks, "s")]
    for transfer in cases:
        tokens, logprobs, cached, said = engine.run(prompt, transfer=transfer, salt="s", tokens=3)
        assert said["injected_tokens"] == 0 and said["fallback"] == {"unauthorised": 1}
        assert_same((tokens, logprobs), cold)
    for transfer, reason in ((dict(good, schema=1), "schema"), (dict(good, schema=3), "schema"),
                             ({"schema": 2}, "malformed"), ({}, "malformed"), ("x", "malformed"),
                             ([good], "malformed"), (dict(good, request=["x"]), "malformed"),
                             (dict(good, request="\ud800"), "malformed"),
                             (dict(good, request="x"), "malformed"),
                             (dict(good, schema=2.0), "malformed"),
                             (dict(good, schema=1 << 63), "malformed"),
                             (dict(good, mac=None), "malformed")):
        said = engine.run(prompt, transfer=transfer, salt="s")[3]
        assert said["fallback"] == {reason: 1}, transfer
    assert not any(connector.failures for connector in engine.connectors)
    # A client may pass anything by as extra arguments of vLLM's, and nine exceptions turn us off.
    for number, anything in enumerate(("x", 5, 1.5, ["inferscale"], True)):
        assert not engine.scheduler.knows(
            SimpleNamespace(request_id=f"anything {number}", kv_transfer_params=anything))
    strange = SimpleNamespace(
        request_id="strange", kv_transfer_params={"inferscale": good}, prompt_token_ids=[1 << 40],
        cache_salt="s", sampling_params=SimpleNamespace(prompt_logprobs=None))
    assert not engine.scheduler.knows(strange)
    said = engine.scheduler.finished(strange)["inferscale"]
    assert said["fallback"] == {"malformed": 1}
    # Reports are kept under what can be a MAC alone.
    assert engine.scheduler.reports.get("0" * 64) is not None
    engine.run(prompt, transfer=dict(good, mac="0" * 1000), salt="s")
    assert engine.scheduler.reports.get("0" * 1000) is None


def test_a_load_that_fails_while_its_request_is_aborted_leaves_nothing_in_the_prefix_cache(engine):
    from vllm import SamplingParams
    from vllm.v1.request import RequestStatus

    prompt, blocks = ids(150, 115), [(key_of("aborted"), 0, 100)]
    engine.run(prompt, "capture", blocks)
    cold = engine.run(prompt, tokens=3)
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    side = engine.worker if engine.worker.on_device else engine.worker.cache
    name = "_stream" if engine.worker.on_device else "write"
    works = getattr(side, name)

    def broken(*_):
        # As the engine does with aborts that arrive during a pass.
        scheduler.finish_requests([running.request_id for running in scheduler.running],
                                  RequestStatus.FINISHED_ABORTED)
        raise RuntimeError("on purpose")

    transfer = engine.transfer("inject", prompt, blocks, "aborted")
    sampling = SamplingParams(temperature=0, max_tokens=3, detokenize=False,
                              extra_args={"kv_transfer_params": {"inferscale": transfer}})
    failures = [connector.failures for connector in engine.connectors]
    setattr(side, name, broken)
    engine.llm.llm_engine.add_request(
        "aborted", {"prompt_token_ids": prompt, "cache_salt": "aborted"}, sampling)
    engine.llm.llm_engine.step()
    setattr(side, name, works)
    engine.llm.llm_engine.abort_request(["aborted"])
    assert [c.failures for c in engine.connectors] != failures
    for connector, before in zip(engine.connectors, failures, strict=True):
        connector.failures = before
    for _ in range(2):
        assert_same(engine.run(prompt, salt="aborted", tokens=3), cold)
    assert pins(engine) == 0


def test_colliding_keys_are_a_miss(engine):
    first, second = ids(40, 110), ids(40, 111)
    blocks = [(key_of("collision"), 0, 30)]
    engine.run(first, "capture", blocks)
    engine.run(second, "capture", blocks)
    cold = engine.run(second, tokens=3)
    tokens, logprobs, cached, said = engine.run(second, "inject", blocks, tokens=3)
    assert said["fallback"] == {"token_mismatch": 1}
    assert cached == 0
    assert_same((tokens, logprobs), cold)


def test_erased_facts_are_computed(engine):
    prompt = ids(60, 120)
    blocks = [(key_of("erase", i), b, e) for i, (b, e) in enumerate(spans(20, 30))]
    engine.run(prompt, "capture", blocks)
    cold = engine.run(prompt, tokens=3)
    engine.scheduler.native.erase([key_of("erase", 1)])
    tokens, logprobs, cached, said = engine.run(prompt, "inject", blocks, tokens=3)
    assert cached == 20 and said["fallback"] == {"not_ready": 1}
    assert_same((tokens, logprobs), cold)


def test_a_block_lost_between_lookup_and_load_is_recomputed(engine):
    prompt = ids(75, 130)
    blocks = [(key_of("lost", i), b, e) for i, (b, e) in enumerate(spans(20, 30))]
    engine.run(prompt, "capture", blocks)
    cold = engine.run(prompt, tokens=3)
    before = engine.scheduler.native.counters()["load_failures"]
    with lost_before_load(engine.worker, key_of("lost", 1)) as lost:
        tokens, logprobs, _, said = engine.run(prompt, "inject", blocks, tokens=3)
    assert lost and engine.scheduler.native.counters()["load_failures"] == before + 1
    engine.assert_recovered((tokens, logprobs), cold)
    assert pins(engine) == 0


@pytest.mark.parametrize("side,hook", [
    ("scheduler", "matched_tokens"), ("scheduler", "allocated"), ("scheduler", "plan"),
    ("scheduler", "take_reports"), ("scheduler", "finished"), ("worker", "start_load"),
    ("worker", "save"), ("worker", "failed_blocks"), ("worker", "report")])
def test_no_exception_leaves_a_hook(engine, monkeypatch, side, hook):
    prompt = ids(50, 140)
    blocks = [(key_of("throw"), 0, 40)]
    engine.run(prompt, "capture", blocks)
    cold = engine.run(prompt, tokens=3)
    connector = next(c for c in engine.connectors if getattr(c, side) is not None)

    def fail(*arguments, **options):
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(getattr(connector, side), hook, fail)
        tokens, logprobs, _, _ = engine.run(prompt, "inject", blocks, tokens=3)
    assert connector.failures > 0
    connector.failures = 0
    # What had been promised is computed then, never left out.
    engine.assert_recovered((tokens, logprobs), cold)
    # And the connector goes on.
    engine.run(prompt, "capture", blocks)
    tokens, logprobs, _, _ = engine.run(prompt, "inject", blocks, tokens=3)
    assert_same((tokens, logprobs), cold)


def test_a_report_that_cannot_be_read_keeps_no_other_from_being_taken(engine, monkeypatch):
    class Native:
        def __init__(self):
            self.taken, self.complete = [], False

        def take_report(self, report):
            if report == b"broken":
                raise ValueError("on purpose")
            self.taken.append(report)

        def start_complete(self):
            self.complete = True

    native = Native()
    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "native", native)
        with pytest.raises(ValueError):
            engine.scheduler.take_reports([b"first", b"broken", b"", b"last"])
        assert native.taken == [b"first", b"last"]
        with pytest.raises(ValueError):
            engine.scheduler.start([b"broken", b"other"])
        assert native.taken[-1] == b"other" and native.complete


def test_no_exception_leaves_a_hook_beside_the_steps(engine, monkeypatch):
    class Broken:
        def __getattr__(self, name):
            raise RuntimeError("on purpose")

    class Unable:
        refusal = ""

        def register(self, caches):
            raise RuntimeError("on purpose")

        def refuse(self, why):
            self.refusal = why

    ours = next(c for c in engine.connectors if c.scheduler is not None)
    with monkeypatch.context() as patch:
        patch.setattr(ours, "scheduler", Broken())
        assert ours.get_kv_connector_stats() is None
        assert ours.reset_cache() is False
        assert ours.shutdown() is None and ours.discard_plan() is None
        assert ours.set_xfer_handshake_metadata({0: object()}) is None
    assert ours.failures == 5
    theirs = next(c for c in engine.connectors if c.worker is not None)
    theirs.failures = 0
    with monkeypatch.context() as patch:
        patch.setattr(theirs, "worker", Broken())
        assert theirs.get_handshake_metadata() is None
        patch.setattr(theirs, "worker", Unable())
        theirs.register_kv_caches({})
        assert "on purpose" in theirs.worker.refusal
    assert theirs.failures == 2
    ours.failures = theirs.failures = 0


def test_a_plan_that_a_rank_cannot_read_is_found_out_where_it_is_caught(engine, monkeypatch):
    """Unpickling is vLLM's, outside every guard: a rank's process would end."""
    prompt = ids(50, 146)
    blocks = [(key_of("unreadable"), 0, 40)]
    engine.run(prompt, "capture", blocks)
    cold = engine.run(prompt, tokens=3)
    connector = next(c for c in engine.connectors if c.worker is not None)
    begin = connector.worker.start_load

    def cut_short(plan):
        if plan is None:
            return begin(plan)
        whole = pickle.loads(pickle.dumps(plan))
        assert whole.__getstate__() == plan.__getstate__()
        broken = type(plan).__new__(type(plan))
        broken.__setstate__(plan.__getstate__()[:-1])
        begin(pickle.loads(pickle.dumps(broken)))

    with monkeypatch.context() as patch:
        patch.setattr(connector.worker, "start_load", cut_short)
        tokens, logprobs, _, _ = engine.run(prompt, "inject", blocks, tokens=3)
    assert connector.failures > 0
    connector.failures = 0
    engine.assert_recovered((tokens, logprobs), cold)
    assert engine.run(prompt, "inject", blocks, tokens=3)[2] == 40


def test_what_a_broken_plan_was_to_load_is_loaded_in_no_later_step(engine, monkeypatch):
    prompt = ids(50, 147)
    blocks = [(key_of("discarded"), 0, 40)]
    engine.run(prompt, "capture", blocks)
    cold = engine.run(prompt, tokens=3)
    connector = next(c for c in engine.connectors if c.scheduler is not None)
    plan, broken = connector.scheduler.plan, []

    def fail_once(output):
        if broken:
            return plan(output)
        broken.append(output)
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(connector.scheduler, "plan", fail_once)
        tokens, logprobs, _, said = engine.run(prompt, "inject", blocks, tokens=3)
    assert connector.failures == 1
    connector.failures = 0
    assert said.get("injected_tokens", 0) == 0
    engine.assert_recovered((tokens, logprobs), cold)
    assert pins(engine) == 0


def test_a_load_that_breaks_halfway_is_recomputed(engine, monkeypatch):
    prompt = ids(50, 145)
    blocks = [(key_of("halfway"), 0, 40)]
    engine.run(prompt, "capture", blocks)
    cold = engine.run(prompt, tokens=3)
    connector = next(c for c in engine.connectors if c.worker is not None)
    with monkeypatch.context() as patch:
        if engine.worker.on_device:
            stream, calls = engine.worker._stream, []
            patch.setattr(engine.worker, "_stream",
                          lambda: stream() if calls else calls.append(1) or 1 / 0)
        else:
            patch.setattr(engine.worker.cache, "write", lambda *_: 1 / 0)
        tokens, logprobs, _, _ = engine.run(prompt, "inject", blocks, tokens=3)
    assert connector.failures == 1
    connector.failures = 0
    engine.assert_recovered((tokens, logprobs), cold)


def test_prompt_logprobs_are_served_without_kv_and_the_reason_is_told(engine):
    from vllm import SamplingParams

    prompt, salt = ids(50, 146), engine.fresh_salt()
    blocks = [(key_of("logprobs"), 0, 40)]
    engine.run(prompt, "capture", blocks)
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, detokenize=False)
    sampling.extra_args = {"kv_transfer_params": {
        "inferscale": engine.transfer("inject", prompt, blocks, salt)}}
    output = engine.llm.generate({"prompt_token_ids": prompt, "cache_salt": salt}, sampling,
                                 use_tqdm=False)[0]
    assert len(output.prompt_logprobs) == 50
    assert output.kv_transfer_params["inferscale"]["fallback"] == {"prompt_logprobs": 1}


def test_aborts_at_any_time_leave_no_pins(engine):
    from vllm import SamplingParams

    prompt = ids(700, 150)
    blocks = [(key_of("abort", i), b, e) for i, (b, e) in enumerate(spans(30, 40, 500))]
    engine.run(prompt, "capture", blocks)
    core = engine.llm.llm_engine
    for number in range(24):
        name, salt = f"abort-{number}", f"abort salt {number}"
        sampling = SamplingParams(temperature=0, max_tokens=8, detokenize=False)
        operation = "inject" if number % 3 else "capture"
        used = blocks if operation == "inject" else [(key_of("again", number), 0, 600)]
        sampling.extra_args = {"kv_transfer_params": {
            "inferscale": engine.transfer(operation, prompt, used, salt)}}
        core.add_request(name, {"prompt_token_ids": prompt, "cache_salt": salt}, sampling)
        for _ in range(number % 5):
            core.step()
        core.abort_request([name])
        while core.has_unfinished_requests():
            core.step()
    engine.run(ids(20, 151))
    assert pins(engine) == 0
    cold = engine.run(prompt, tokens=2)
    tokens, logprobs, _, _ = engine.run(prompt, "inject", blocks, tokens=2)
    assert_same((tokens, logprobs), cold)


def test_requests_of_one_step_are_injected_together(engine):
    from vllm import SamplingParams

    prompts = [ids(60, 160 + i) for i in range(6)]
    cold = [engine.run(p, tokens=2) for p in prompts]
    for number, prompt in enumerate(prompts):
        engine.run(prompt, "capture", [(key_of("many", number), 0, 50)])
    requests, samplings = [], []
    for number, prompt in enumerate(prompts):
        salt = f"many {number}"
        sampling = SamplingParams(temperature=0, max_tokens=2, logprobs=5, detokenize=False,
                                  ignore_eos=True)
        sampling.extra_args = {"kv_transfer_params": {"inferscale": engine.transfer(
            "inject", prompt, [(key_of("many", number), 0, 50)], salt)}}
        requests.append({"prompt_token_ids": prompt, "cache_salt": salt})
        samplings.append(sampling)
    for number, output in enumerate(engine.llm.generate(requests, samplings, use_tqdm=False)):
        assert output.num_cached_tokens == 50
        got = [{i: p.logprob for i, p in place.items()} for place in output.outputs[0].logprobs]
        assert_same((list(output.outputs[0].token_ids), got), cold[number])


def test_vllm_counts_what_was_injected(engine, monkeypatch):
    """In its log and its Prometheus metrics, from what the scheduler hands to them."""
    from prometheus_client import CollectorRegistry, Counter
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
        KVConnectorLogging,
        KVConnectorProm,
    )

    config = engine.llm.llm_engine.vllm_config
    registry = CollectorRegistry()
    monkeypatch.setattr(KVConnectorProm, "_counter_cls",
                        functools.partial(Counter, registry=registry))
    prometheus = KVConnectorProm(config, ["engine"], {0: ["0"]})
    log = KVConnectorLogging(config.kv_transfer_config)
    scheduler = next(c for c in engine.connectors if c.scheduler is not None)
    seen, original = [], scheduler.get_kv_connector_stats

    def read():
        stats = original()
        if stats is not None:
            seen.append(stats)
        return stats

    monkeypatch.setattr(scheduler, "get_kv_connector_stats", read)
    prompt = ids(70, 190)
    engine.run(prompt, "capture", [(key_of("counted"), 0, 40)])
    engine.run(prompt, "inject", [(key_of("counted"), 0, 40), (key_of("missing"), 40, 60)])
    engine.run(ids(20, 191))
    for stats in seen:
        prometheus.observe(stats.data)
        log.observe(stats.data)
    values = {s.name + s.labels.get("reason", ""): s.value
              for metric in registry.collect() for s in metric.samples}
    assert values["vllm:inferscale_injected_tokens_total"] == 40
    assert values["vllm:inferscale_captured_blocks_total"] == 1
    assert values["vllm:inferscale_fallbacks_totalnot_ready"] == 1
    lines = []
    log.log(lambda text, *values: lines.append(text % values))
    assert "inferscale injected_tokens=40" in lines[0]


def test_a_reset_empties_the_store(engine):
    prompt = ids(40, 170)
    blocks = [(key_of("reset"), 0, 30)]
    engine.run(prompt, "capture", blocks)
    connector = next(c for c in engine.connectors if c.scheduler is not None)
    assert connector.reset_cache()
    assert engine.run(prompt, "inject", blocks)[2] == 0
    engine.run(prompt, "capture", blocks)
    assert engine.run(prompt, "inject", blocks)[2] == 30
