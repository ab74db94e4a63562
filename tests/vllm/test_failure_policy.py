"""What vLLM's own settings make of the connector: its failure policy, and other connectors beside it."""

import pytest
from conftest import Engine, key_of
from test_bookkeeping import BLOCK, ids, pins


def test_under_the_policy_fail_a_load_that_breaks_ends_its_request_alone(tiny_model, tmp_path):
    engine = Engine(tiny_model, tmp_path, block_size=BLOCK, max_num_batched_tokens=256,
                    policy="fail")
    try:
        engine.probe()
        prompt, blocks = ids(50, 300), [(key_of("policy"), 0, 40)]
        engine.run(prompt, "capture", blocks)
        cold = engine.run(prompt, tokens=3)
        side = engine.worker if engine.worker.on_device else engine.worker.cache
        name = "_stream" if engine.worker.on_device else "write"
        works = getattr(side, name)
        setattr(side, name, lambda *_: 1 / 0)
        broken = engine.run(prompt, "inject", blocks, tokens=3)
        setattr(side, name, works)
        assert broken[0] == []
        assert engine.run(prompt, "inject", blocks, tokens=3)[0] == cold[0]
        assert pins(engine) == 0
    finally:
        engine.close()


def test_an_engine_with_another_connector_beside_this_one_does_not_start(tiny_model, tmp_path):
    from vllm import LLM

    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 32)
    secret.chmod(0o600)
    ours = {"kv_connector": "InferScaleConnector", "kv_connector_module_path": "inferscale.vllm",
            "kv_role": "kv_both", "kv_connector_extra_config": {"secret_file": str(secret)}}
    other = {"kv_connector": "ExampleConnector", "kv_role": "kv_both",
             "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "shared")}}
    with pytest.raises(Exception, match="cannot stand beside ExampleConnector"):
        LLM(model=tiny_model, skip_tokenizer_init=True, enforce_eager=True, max_model_len=512,
            block_size=BLOCK, disable_hybrid_kv_cache_manager=True,
            kv_transfer_config={"kv_connector": "MultiConnector", "kv_role": "kv_both",
                                "kv_connector_extra_config": {"connectors": [ours, other]}})
