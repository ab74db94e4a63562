"""Addresses of caches in every arrangement that vLLM has had; no engine is started."""

import math
from types import SimpleNamespace

import pytest
import torch

from inferscale.vllm.connector import siblings
from inferscale.vllm.rotation import frequencies
from inferscale.vllm.settings import (
    differing_layers,
    engine_suffix,
    fails_instead_of_recomputing,
    frees_ahead,
    parse_size,
    refusal_of,
    refuse_siblings,
    SettingsError,
    window_of,
)
from inferscale.vllm.strided_cache import StridedCache

BLOCKS, SLOTS, HEADS, DIM = 7, 16, 3, 8
# Shape as vLLM hands it over, order of the axes in memory, and the keys and values of it as
# [blocks, slots, heads, dim].
LAYOUTS = {
    "blocks, 2, slots, heads, dim": (
        (BLOCKS, 2, SLOTS, HEADS, DIM), (0, 1, 2, 3, 4), lambda c: c.unbind(1)),
    "the same with heads before slots in memory": (
        (BLOCKS, 2, SLOTS, HEADS, DIM), (0, 1, 3, 2, 4), lambda c: c.unbind(1)),
    "2, blocks, slots, heads, dim": (
        (2, BLOCKS, SLOTS, HEADS, DIM), (0, 1, 2, 3, 4), lambda c: c.unbind(0)),
    "blocks, heads, slots, 2 dim": (
        (BLOCKS, HEADS, SLOTS, 2 * DIM), (0, 1, 2, 3), lambda c: c.transpose(1, 2).split(DIM, -1)),
    "the same with slots before heads in memory": (
        (BLOCKS, HEADS, SLOTS, 2 * DIM), (0, 2, 1, 3), lambda c: c.transpose(1, 2).split(DIM, -1)),
    "blocks outside of K and V in memory alone": (
        (2, BLOCKS, SLOTS, HEADS, DIM), (1, 0, 2, 3, 4), lambda c: c.unbind(0)),
}


def cache_of(shape, order, dtype=torch.bfloat16):
    memory = torch.zeros([shape[axis] for axis in order], dtype=dtype)
    return memory.permute([order.index(axis) for axis in range(len(shape))])


def layer_of(views):
    def update(layer, keys, values, cache, slots):
        for view, rows in zip(views(cache), (keys, values), strict=True):
            view[slots // SLOTS, slots % SLOTS] = rows

    return SimpleNamespace(impl=SimpleNamespace(do_kv_cache_update=update))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_addresses_are_where_the_engine_writes(name, dtype):
    shape, order, views = LAYOUTS[name]
    caches = [cache_of(shape, order, dtype) for _ in range(2)]
    learnt = StridedCache([layer_of(views)] * 2, caches, SLOTS, HEADS, DIM, BLOCKS)
    assert all(not cache.any() for cache in caches)  # the engine's own cache was not touched
    for cache in caches:
        cache.copy_(torch.randn(shape))
    addresses, size = learnt.addresses(), caches[0].element_size()
    for layer, cache in enumerate(caches):
        for which, view in zip(("key", "value"), views(cache), strict=True):
            start = addresses[which + "s"][layer]
            for place in ((0, 0, 0, 0), (6, 15, 2, 7), (3, 5, 1, 4)):
                strides = addresses[which + "_strides"]
                expected = view.data_ptr() + size * sum(
                    i * s for i, s in zip(place, view.stride(), strict=True))
                assert start + sum(i * s for i, s in zip(place, strides, strict=True)) == expected
    slots = torch.tensor([0, 17, 5 * SLOTS + 3])
    for rows, view in zip(learnt.read(slots), views(caches[1]), strict=True):
        assert torch.equal(rows[1], view[slots // SLOTS, slots % SLOTS].float())


def test_a_cache_that_no_strides_describe_is_refused():
    def update(layer, keys, values, cache, slots):
        order = torch.tensor([1, 0, *range(2, SLOTS)])
        cache[slots // SLOTS, 0, order[slots % SLOTS]] = keys
        cache[slots // SLOTS, 1, slots % SLOTS] = values

    layer = SimpleNamespace(impl=SimpleNamespace(do_kv_cache_update=update))
    with pytest.raises(NotImplementedError, match="strides"):
        StridedCache([layer], [cache_of((BLOCKS, 2, SLOTS, HEADS, DIM), (0, 1, 2, 3, 4))],
                     SLOTS, HEADS, DIM, BLOCKS)


def test_a_cache_of_another_number_of_blocks_is_refused():
    shape, order, views = LAYOUTS["blocks, 2, slots, heads, dim"]
    with pytest.raises(NotImplementedError, match="blocks"):
        StridedCache([layer_of(views)], [cache_of(shape, order)], SLOTS, HEADS, DIM, BLOCKS + 4)


@pytest.mark.parametrize("base,factor,magnitude", [(1e4, 1.0, 1.0), (5e5, 8.0, 1.0), (1e4, 4.0, 1.2)])
def test_frequencies_are_read_from_the_engines_table(base, factor, magnitude):
    pairs = 32
    exact = [base ** (-i / pairs) / factor for i in range(pairs)]
    angles = torch.arange(131072, dtype=torch.float32)[:, None] * torch.tensor(exact)[None, :]
    table = torch.cat((angles.cos(), angles.sin()), dim=1) * magnitude
    got = frequencies(table.double())
    for found, true in zip(got, exact, strict=True):
        # As exact as the table: its angles are float32.
        assert abs(found - true) * 131072 < 131072 * true * 2e-7 + 1e-5
        assert math.isfinite(found)


@pytest.mark.parametrize("asynchronous,second_runner,policy,version,fails", [
    (True, False, "recompute", "0.24.0", True), (False, False, "recompute", "0.24.0", False),
    (False, True, "recompute", "0.24.0", True), (None, False, "recompute", "0.24.0", False),
    (True, True, "fail", "0.24.0", False), (True, True, "recompute", "0.32.0", False)])
def test_recovery_is_left_to_vllm_where_it_is_right(asynchronous, second_runner, policy, version,
                                                    fails):
    config = SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
                             use_v2_model_runner=second_runner,
                             kv_transfer_config=SimpleNamespace(kv_load_failure_policy=policy))
    assert fails_instead_of_recomputing(config, version) == fails
    assert frees_ahead(config, version) == (bool(asynchronous) and version.startswith("0.24."))
    # Where it frees blocks behind a window no version's is.
    assert fails_instead_of_recomputing(config, version, window=4096) == (policy == "recompute")


@pytest.mark.parametrize("groups,reason,window", [
    ([("FullAttentionSpec", {})], "", 0),
    ([("FullAttentionSpec", {"sliding_window": 48})], "", 0),
    ([("SlidingWindowSpec", {"sliding_window": 48})], "", 48),
    ([("FullAttentionSpec", {}), ("SlidingWindowSpec", {"sliding_window": 48})],
     "--disable-hybrid-kv-cache-manager", 0),
    ([("SlidingWindowSpec", {"sliding_window": 48}), ("SlidingWindowSpec", {"sliding_window": 96})],
     "several windows", 0),
    ([("FullAttentionSpec", {"attention_chunk_size": 64})], "chunked attention", 0),
    ([("ChunkedLocalAttentionSpec", {"attention_chunk_size": 64})], "other than", 0),
    ([("FullAttentionSpec", {}), ("ChunkedLocalAttentionSpec", {"attention_chunk_size": 64})],
     "other than", 0),
    ([("SinkFullAttentionSpec", {"sink_len": 4})], "other than", 0),
    ([("MLAAttentionSpec", {})], "other than", 0),
    ([("CrossAttentionSpec", {})], "other than", 0),
    ([("FullAttentionSpec", {"head_size_v": 64})], "differ in size", 0),
    ([("SlidingWindowSpec", {"sliding_window": 48, "dtype": torch.uint8})], "uint8", 48),
    ([], "other than", 0)])
def test_groups_of_layers_that_are_served_and_that_are_not(groups, reason, window):
    from vllm.v1 import kv_cache_interface as vllm

    def spec(kind, further):
        return getattr(vllm, kind)(**{"block_size": 16, "num_kv_heads": 2, "head_size": 32,
                                      "dtype": torch.float32, **further})

    caches = SimpleNamespace(kv_cache_groups=[
        SimpleNamespace(kv_cache_spec=spec(*group)) for group in groups])
    config = SimpleNamespace(parallel_config=SimpleNamespace(pipeline_parallel_size=1))
    refusal = refusal_of(config, caches)
    assert reason in refusal and bool(refusal) == bool(reason)
    assert window_of(caches) == window


@pytest.mark.parametrize("kinds,differ,window", [
    ([("FullAttentionSpec", {}), ("FullAttentionSpec", {"sliding_window": 48})], False, 0),
    ([("SlidingWindowSpec", {"sliding_window": 48})] * 2, False, 48),
    ([("FullAttentionSpec", {}), ("FullAttentionSpec", {"head_size": 64})], True, 0),
    ([("FullAttentionSpec", {}), ("FullAttentionSpec", {"num_kv_heads": 4})], True, 0),
    ([("FullAttentionSpec", {}), ("FullAttentionSpec", {"dtype": torch.float16})], True, 0),
    ([("FullAttentionSpec", {}), ("FullAttentionSpec", {"attention_chunk_size": 64})], True, 0),
    ([("FullAttentionSpec", {}), ("SinkFullAttentionSpec", {"sink_len": 4})], True, 0)])
def test_a_group_whose_layers_are_listed_one_by_one(kinds, differ, window):
    """The worker has it so where they differ in anything, the scheduler has the first."""
    from vllm.v1 import kv_cache_interface as vllm

    names = [f"layer {number}" for number in range(len(kinds))]
    specs = [getattr(vllm, kind)(**{"block_size": 16, "num_kv_heads": 2, "head_size": 32,
                                    "dtype": torch.float32, **further}) for kind, further in kinds]
    config = SimpleNamespace(parallel_config=SimpleNamespace(pipeline_parallel_size=1))
    together = vllm.UniformTypeKVCacheSpecs(block_size=16,
                                            kv_cache_specs=dict(zip(names, specs, strict=True)))
    for spec in (together, specs[0]):
        caches = SimpleNamespace(kv_cache_groups=[
            SimpleNamespace(kv_cache_spec=spec, layer_names=names)])
        assert refusal_of(config, caches) == ""
        assert window_of(caches) == window
        assert bool(differing_layers(caches)) == (differ and spec is together)


@pytest.mark.parametrize("parallel,suffix", [
    ({"data_parallel_rank": 0}, ""), ({"data_parallel_rank": 2}, "-2"),
    ({"data_parallel_rank": 0, "data_parallel_index": 0}, ""),
    ({"data_parallel_rank": 0, "data_parallel_index": 1}, "-1")])  # a dense model
def test_engines_of_a_data_parallel_server_have_sockets_and_folders_of_their_own(parallel, suffix):
    assert engine_suffix(SimpleNamespace(**parallel)) == suffix


def test_sizes_are_read_or_refused_before_anything_is_made_of_them():
    assert parse_size("gpu_bytes", "2g") == 2 << 30
    assert parse_size("pinned_bytes", 0) == 0
    for wrong in ("", "-1", "1.5G", "1 G", "G", None, True, "9000000T", 1 << 63):
        with pytest.raises(SettingsError, match="pinned_bytes"):
            parse_size("pinned_bytes", wrong)


def test_no_other_connector_beside_this_one():
    ours, other = {"kv_connector": "InferScaleConnector"}, {"kv_connector": "SharedStorageConnector"}
    refuse_siblings([])
    refuse_siblings([ours])
    for connectors in ([ours, other], [other, ours], [ours, ours]):
        with pytest.raises(SettingsError, match="MultiConnector"):
            refuse_siblings(connectors)


def test_multi_connector_is_found_by_the_connector_it_makes():
    class MultiConnector:
        def __init__(self, vllm_config):
            self.found = siblings()

    connectors = [{"kv_connector": "InferScaleConnector"}]
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(
        kv_connector_extra_config={"connectors": connectors}))
    assert MultiConnector(config).found == connectors
    assert siblings() == []
