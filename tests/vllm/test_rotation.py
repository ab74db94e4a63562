"""Long contexts on a bf16 cache: vLLM's own frequencies serve them, a measurement alone does not."""

import pytest
import torch
from conftest import Engine, key_of, write_tiny_gemma3
from test_bookkeeping import BLOCK, ids

LENGTH = 12288


def start(tiny_model, folder, **options):
    return Engine(tiny_model, folder, block_size=BLOCK, max_num_batched_tokens=2048,
                  max_model_len=16384, dtype="bfloat16", **options)


def keys_of(engine, prompt, begin, end, *arguments):
    """Keys of all layers in tokens [begin, end). Those of layer 0 depend on token and position alone;
    those of all layers do in a prompt of one token."""
    manager = engine.llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager
    connector = next(c for c in engine.connectors if c.scheduler is not None)
    worker = next(c for c in engine.connectors if c.worker is not None)
    allocated, save, seen = connector.update_state_after_alloc, worker.wait_for_save, {}

    def remember(request, blocks, external):
        seen["name"] = request.request_id
        return allocated(request, blocks, external)

    def read():
        save()
        table = manager.get_block_ids(seen["name"])[0]
        if "keys" not in seen and len(table) * BLOCK >= len(prompt):
            slots = [table[p // BLOCK] * BLOCK + p % BLOCK for p in range(begin, end)]
            seen["keys"] = engine.worker.cache.read(torch.tensor(slots))[0].float()

    connector.update_state_after_alloc, worker.wait_for_save = remember, read
    try:
        said = engine.run(prompt, *arguments)[3]
    finally:
        connector.update_state_after_alloc, worker.wait_for_save = allocated, save
    return seen["keys"], said


def error_of(moved, cold):
    """The largest of a layer, relative to its keys."""
    squares = [(part.pow(2).mean(dim=(1, 2, 3))) for part in (moved - cold, cold)]
    return float((squares[0] / squares[1]).sqrt().max())


def test_keys_are_placed_far_behind_the_probe_as_the_engine_places_them(tiny_model, tmp_path):
    engine = start(tiny_model, tmp_path)
    engine.probe()
    front, fact, tail = ids(LENGTH, 1), ids(100, 2), ids(41, 3)
    engine.run([*front[:1000], 9], "capture", [(key_of("front", i), i * 100, i * 100 + 100)
                                               for i in range(10)])
    # The front again and again, so that each of its blocks is captured once.
    front = front[:1000] * (LENGTH // 1000)
    engine.run([*fact, 9], "capture", [(key_of("far"), 0, 100)])
    prompt, begin = [*front, *fact, *tail], len(front)
    blocks = [(key_of("front", i % 10), i * 100, i * 100 + 100) for i in range(begin // 100)]
    end = begin + 101
    cold, _ = keys_of(engine, prompt, begin, end)
    moved, said = keys_of(engine, prompt, begin, end, "inject", [*blocks, (key_of("far"), begin,
                                                                           begin + 100)])
    assert said["injected_tokens"] == begin + 100
    assert moved.shape == cold.shape and begin > 11000
    # Two roundings of bf16 apart at most, of elements up to about four times the mean; a measured
    # frequency would be off by 0.01 and more here.
    engine.close()
    assert error_of(moved[:1], cold[:1]) < 2**-8


def test_without_the_engines_frequencies_long_contexts_are_served_as_text(tiny_model, tmp_path,
                                                                           monkeypatch):
    monkeypatch.setattr("inferscale.vllm.worker.engine_rotation", lambda: None)
    engine = start(tiny_model, tmp_path)
    engine.run([5] * 1025, "probe")
    refusal = engine.scheduler.native.counters()["refusal"]
    engine.close()
    assert "--max-model-len" in refusal


@pytest.mark.parametrize("wrong", [1.02, 0.5])
def test_frequencies_that_the_probe_contradicts_are_not_used(tiny_model, tmp_path, monkeypatch,
                                                             wrong):
    from inferscale.vllm import worker

    pairing, true = [], worker.engine_rotation

    def perturbed():
        pairing[:], rotations = [true()[0]], true()[1]
        return pairing[0], [[f * wrong for f in one] for one in rotations]

    monkeypatch.setattr(worker, "engine_rotation", perturbed)
    engine = start(tiny_model, tmp_path)
    engine.run([5] * 1025, "probe")
    refusal = engine.scheduler.native.counters()["refusal"]
    engine.close()
    assert pairing and "--max-model-len" in refusal


def test_layers_that_turn_in_two_ways_get_the_engines_frequencies_each(tmp_path):
    engine = Engine(write_tiny_gemma3(tmp_path, 48), tmp_path, block_size=BLOCK,
                    max_num_batched_tokens=2048, max_model_len=16384, dtype="bfloat16",
                    disable_hybrid_kv_cache_manager=True)
    engine.probe()  # refused if they were measured, as above
    engine.run([7] * 150, "capture", [(key_of("turned"), 100, 140)])
    prompt, begin = [7] * LENGTH + ids(9, 4), LENGTH // 40 * 40
    blocks = [(key_of("turned"), b, b + 40) for b in range(0, begin, 40)]
    cold, _ = keys_of(engine, prompt, begin - 40, begin)
    moved, said = keys_of(engine, prompt, begin - 40, begin, "inject", blocks)
    engine.close()
    assert said["injected_tokens"] == begin
    assert error_of(moved, cold) < 2**-7
