"""A cache too small for its requests: preempted and resumed ones keep exact KV, both ways."""

import pytest
from conftest import Engine, assert_same, key_of
from test_bookkeeping import BLOCK, ids


@pytest.fixture(scope="module")
def engine(tiny_model, tmp_path_factory):
    # 40 blocks of 32: five prompts of 200 tokens fit, and not what they generate.
    engine = Engine(tiny_model, tmp_path_factory.mktemp("small"), block_size=BLOCK,
                    max_num_batched_tokens=2048, num_gpu_blocks_override=40, max_model_len=1152)
    engine.probe()
    yield engine
    engine.close()


def count_preemptions(engine, monkeypatch) -> list[str]:
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    original, seen = scheduler._preempt_request, []

    def preempt(request, *arguments, **options):
        seen.append(request.request_id)
        return original(request, *arguments, **options)

    monkeypatch.setattr(scheduler, "_preempt_request", preempt)
    return seen


def generate(engine, prompts, operation, blocks, tokens, shared_salt=None):
    from vllm import SamplingParams

    requests, samplings = [], []
    for number, prompt in enumerate(prompts):
        salt = shared_salt or engine.fresh_salt()
        sampling = SamplingParams(temperature=0, max_tokens=tokens, logprobs=5, detokenize=False,
                                  ignore_eos=True)
        if operation:
            sampling.extra_args = {"kv_transfer_params": {"inferscale": engine.transfer(
                operation, prompt, blocks[number], salt)}}
        requests.append({"prompt_token_ids": prompt, "cache_salt": salt})
        samplings.append(sampling)
    return engine.llm.generate(requests, samplings, use_tqdm=False)


def test_preempted_requests_are_injected_and_captured_exactly(engine, monkeypatch):
    prompts = [ids(200, 400 + i) for i in range(6)]
    blocks = [[(key_of("small", i, j), begin, begin + 60) for j, begin in enumerate((0, 60, 120))]
              for i in range(6)]
    cold = [engine.run(prompt, tokens=80) for prompt in prompts]

    preempted = count_preemptions(engine, monkeypatch)
    captured = generate(engine, prompts, "capture", blocks, 80)
    assert preempted, "the cache was large enough: the test proves nothing"
    assert all(o.kv_transfer_params["inferscale"]["captured_blocks"] == 3 for o in captured)

    preempted.clear()
    for number, output in enumerate(generate(engine, prompts, "inject", blocks, 80)):
        assert output.kv_transfer_params["inferscale"]["fallback"] == {}
        assert output.kv_transfer_params["inferscale"]["injected_tokens"] >= 180
        got = [{i: p.logprob for i, p in place.items()} for place in output.outputs[0].logprobs]
        assert_same((list(output.outputs[0].token_ids), got), cold[number])
    assert preempted
    assert engine.scheduler.native.counters()["pins"] == 0
    # What was captured under preemption serves alone as well.
    for number, prompt in enumerate(prompts):
        tokens, logprobs, cached, _ = engine.run(prompt, "inject", blocks[number], tokens=5)
        assert cached == 180
        assert_same((tokens, logprobs), [part[:5] for part in cold[number][:2]])
