"""Two ranks of a real vLLM with files: a restart serves them, a shard that is gone is missing."""

import shutil

import pytest
from conftest import Engine, assert_same, key_of, write_tiny_llama
from test_bookkeeping import BLOCK, ids, spans


def start(tiny_model, folder, ranks):
    engine = Engine(tiny_model, folder, block_size=BLOCK, max_num_batched_tokens=2048,
                    tensor_parallel_size=ranks,
                    extra={"folder": str(folder / "kv"), "file_bytes": "64M"})
    engine.probe()
    return engine


def test_another_models_store_is_not_served(tiny_model, tmp_path):
    prompt, blocks = ids(60, 210), [(key_of("model"), 0, 50)]
    engine = start(tiny_model, tmp_path, 1)
    engine.run(prompt, "capture", blocks)
    engine.close()
    other = tmp_path / "other"
    other.mkdir()
    engine = start(write_tiny_llama(other, 512, seed=12), tmp_path, 1)
    cold = engine.run(prompt, tokens=3)
    tokens, logprobs, cached, said = engine.run(prompt, "inject", blocks, tokens=3)
    assert cached == 0 and said["fallback"] == {"not_ready": 1}
    assert_same((tokens, logprobs), cold)
    engine.run(prompt, "capture", blocks)
    tokens, logprobs, cached, _ = engine.run(prompt, "inject", blocks, tokens=3)
    assert cached == 50
    assert_same((tokens, logprobs), cold)
    engine.close()


@pytest.mark.parametrize("ranks", [2])
def test_files_serve_after_a_restart_and_a_lost_shard_is_computed(tiny_model, tmp_path, ranks):
    prompt = ids(100, 200)
    blocks = [(key_of("restart", i), b, e) for i, (b, e) in enumerate(spans(40, 50))]
    engine = start(tiny_model, tmp_path, ranks)
    cold = engine.run(prompt, tokens=3)
    assert engine.run(prompt, "capture", blocks)[3]["captured_blocks"] == 2
    assert engine.run(prompt, "inject", blocks)[2] == 90
    engine.close()

    engine = start(tiny_model, tmp_path, ranks)
    tokens, logprobs, cached, _ = engine.run(prompt, "inject", blocks, tokens=3)
    assert cached == 90
    assert_same((tokens, logprobs), cold)
    engine.close()

    second = key_of("restart", 1).hex()
    lost = list((tmp_path / f"kv/rank-{ranks - 1}").rglob(f"{second}*"))
    assert len(lost) == 1
    lost[0].unlink()
    engine = start(tiny_model, tmp_path, ranks)
    tokens, logprobs, cached, said = engine.run(prompt, "inject", blocks, tokens=3)
    assert cached == 40 and said["fallback"] == {"not_ready": 1}
    assert_same((tokens, logprobs), cold)
    engine.close()
    shutil.rmtree(tmp_path / "kv")
