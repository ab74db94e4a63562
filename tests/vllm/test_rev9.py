import pytest
from conftest import assert_same, key_of, DEVICE
from test_windows import start, facts, BLOCK
from test_bookkeeping import ids, pins
from test_preemption import generate


def losing(engine, monkeypatch, key):
    from inferscale import _native
    begin, lost = engine.worker.start_load, []
    def lose(plan):
        if plan and not lost:
            lost.append(plan)
            other = _native.Scheduler(secret=b"x" * 16, budget_bytes=1, token_bytes=1, ranks=1)
            other.erase([key])
            engine.worker.native.begin(other.take_plan())
        begin(plan)
    monkeypatch.setattr(engine.worker, "start_load", lose)
    return lost


def test_async(tmp_path, monkeypatch):
    from vllm import SamplingParams
    from vllm.v1.request import RequestStatus
    import inferscale.vllm.scheduler as s
    monkeypatch.setattr(s, "frees_ahead", lambda *a: True)
    engine = start("every layer", tmp_path)
    try:
        engine.probe()
        core = engine.llm.llm_engine.engine_core.engine_core
        scheduler = core.scheduler
        for n, tail in enumerate((20, 47, 60, 90, 150, 300)):
            prompt, blocks = ids(280 + tail, 900 + tail), facts(("as", tail), 7)
            engine.run(prompt, "capture", blocks)
            cold = engine.run(prompt, tokens=5)
            with monkeypatch.context() as patch:
                lost = losing(engine, patch, key_of(("as", tail), 6))
                original = scheduler.update_from_output
                def update(*a):
                    for r in scheduler.running:
                        scheduler.kv_cache_manager.remove_skipped_blocks(r.request_id, r.num_computed_tokens)
                    return original(*a)
                patch.setattr(scheduler, "update_from_output", update)
                broken = engine.run(prompt, "inject", blocks, salt=f"a{tail}", tokens=5)
            print("TAIL", tail, bool(lost), broken[0], cold[0], broken[2:])
            again = engine.run(prompt, "inject", blocks, salt=f"a{tail}", tokens=5)
            print("  AGAIN", again[0] == cold[0], again[2:])
        # abort
        for tail in (30, 100, 200, 400):
            prompt, blocks = ids(100 + tail, 9115 + tail), [(key_of("aborted", tail), 0, 100)]
            engine.run(prompt, "capture", blocks)
            cold = engine.run(prompt, tokens=3)
            side = engine.worker if engine.worker.on_device else engine.worker.cache
            name = "_stream" if engine.worker.on_device else "write"
            works = getattr(side, name)

            def broken(*_):
                scheduler.finish_requests([running.request_id for running in scheduler.running],
                                          RequestStatus.FINISHED_ABORTED)
                raise RuntimeError("on purpose")
            salt = f"aborted{tail}"
            transfer = engine.transfer("inject", prompt, blocks, salt)
            sampling = SamplingParams(temperature=0, max_tokens=3, detokenize=False,
                                      extra_args={"kv_transfer_params": {"inferscale": transfer}})
            failures = [connector.failures for connector in engine.connectors]
            setattr(side, name, broken)
            engine.llm.llm_engine.add_request(
                salt, {"prompt_token_ids": prompt, "cache_salt": salt}, sampling)
            engine.llm.llm_engine.step()
            setattr(side, name, works)
            engine.llm.llm_engine.abort_request([salt])
            for connector, before in zip(engine.connectors, failures, strict=True):
                connector.failures = before
            for cut in range(len(prompt), 110, -32):
                c = engine.run(prompt[:cut], tokens=3)
                got = engine.run(prompt[:cut], salt=salt, tokens=3)
                print("ABORT", tail, cut, got[0] == c[0], max(abs(a[k]-b[k]) for a,b in zip(got[1],c[1]) for k in a if k in b), "cached", got[2])
    finally:
        engine.close()
