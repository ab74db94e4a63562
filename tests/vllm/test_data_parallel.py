"""Data-parallel ranks behind one API server, TLS and its key, against a gateway of its own.

A tiny random Llama; the server is started twice: with two ranks, and again after it was killed.
"""

import json
import os
import pathlib
import signal
import subprocess

import pytest
from serving import BINARY, Between, Gateway, Pair, request

from inferscale import _native

FACTS = ["Maya parked her car at the harbour.", "Maya has two cats called Mimi and Tom.",
         "Maya works as a nurse in the city hospital."]
OWNERS = [f"owner-{number}" for number in range(14)]
RANKS = (0, 1)
MOST_TOKENS = 3000  # of KV a rank, more than all facts and less than the longest prompt


def token_bytes(model: str) -> int:
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    return _native.token_bytes("f32", config["num_hidden_layers"], config["num_key_value_heads"],
                               config["head_dim"])


@pytest.fixture(scope="module")
def pair(tiny_chat_model, tmp_path_factory):
    # Workers inside the engines' processes: half of the processes to wait for.
    pair = Pair(tmp_path_factory.mktemp("ranks"), tiny_chat_model, tls=True,
                options=("--distributed-executor-backend", "uni", "--max-model-len", "4096"),
                connector={"file_bytes": str(MOST_TOKENS * token_bytes(tiny_chat_model))})
    try:
        start(pair)
        yield pair
    finally:
        pair.end()


def start(pair: Pair) -> None:
    pair.start_vllm("--data-parallel-size", "2", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.fixture(scope="module")
def gateway(pair):
    """Started while no rank's socket is there yet."""
    sockets = [pathlib.Path(pair.socket), pathlib.Path(pair.socket + "-1")]
    for rank in RANKS:
        sockets[rank].rename(pair.folder / f"later-{rank}")
    gateway = Gateway(pair, pair.start_gateway("data", pair.flags()))
    gateway.appear = lambda rank: (pair.folder / f"later-{rank}").rename(sockets[rank])
    return gateway


def serve_once(pair: Pair, *flags: str, **environment: str):
    return subprocess.run([str(BINARY), "serve", "--listen", "127.0.0.1:0", "--data-dir",
                           str(pair.folder / "refused"), *flags],
                          env=os.environ | pair.environment() | environment, capture_output=True,
                          text=True, timeout=60)


def test_a_certificate_that_nobody_trusted_signed_is_refused(pair):
    without = [flag for flag in pair.flags() if flag not in ("--vllm-ca-file", str(pair.ca))]
    done = serve_once(pair, *without)
    assert done.returncode != 0
    assert "certificate" in done.stderr and "--vllm-ca-file" in done.stderr, done.stderr
    done = serve_once(pair, *without, "--vllm-ca-file", "/nowhere/ca.pem")
    assert done.returncode != 0 and "/nowhere/ca.pem" in done.stderr, done.stderr


def test_another_key_is_refused(pair):
    done = serve_once(pair, *pair.flags(), INFERSCALE_VLLM_KEY="another")
    assert done.returncode != 0 and "API key" in done.stderr and "another" not in done.stderr


def test_doctor_leaves_nothing_behind_when_its_chat_injects_nothing(pair):
    flags = pair.flags()
    with Between(pair) as between:
        flags[flags.index(pair.vllm_url)] = between.url
        done = subprocess.run([str(BINARY), "doctor", "--json", "--data-dir",
                               str(pair.folder / "doctor"), "--extractor-url",
                               "http://127.0.0.1:9/v1", "--extractor-model", "none", *flags],
                              env=os.environ | pair.environment(), capture_output=True, text=True,
                              timeout=60)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert not checks["encoding"]["ok"], checks
    assert "injected nothing" in checks["encoding"]["detail"]
    assert "erased again" in checks["encoding"]["detail"]
    assert [pair.control("stats", rank=rank)["blocks"] for rank in RANKS] == [0, 0]
    assert not pair.files()


def injects(gateway: Gateway, owner: str) -> bool:
    """Asked once an owner and start: from then on the facts are in vLLM's own prefix cache."""
    status, answer = gateway.chat("What are Maya's cats called?", owner, max_tokens=2)
    if status != 200:
        return False
    assert len(answer["memory"]["facts"]) == len(FACTS)
    return answer["memory"]["injected_tokens"] > 30


def test_a_gateway_before_its_engine_serves_text_and_then_kv(pair, gateway):
    assert gateway.add(FACTS, OWNERS[0])[0] == 200
    assert not injects(gateway, OWNERS[0])
    assert not pair.files()
    assert "served as text until that has changed" in (pair.folder / "data.log").read_text()
    gateway.appear(0)
    # Nobody asks for anything meanwhile.
    pair.until(lambda: len(pair.files(0)) >= len(FACTS))
    gateway.wait()
    assert not pair.files(1)
    assert injects(gateway, OWNERS[0])


def test_a_rank_that_appears_later_gets_its_owners(pair, gateway):
    gateway.appear(1)
    pair.until(lambda: "rank 1 serves KV" in (pair.folder / "data.log").read_text())
    for owner in OWNERS[1:]:
        assert gateway.add(FACTS, owner)[0] == 200
    gateway.wait()
    assert all(pair.files(rank) for rank in RANKS)
    before = [pair.control("stats", rank=rank)["injected_tokens"] for rank in RANKS]
    for owner in OWNERS[1:]:
        assert injects(gateway, owner), owner
    after = [pair.control("stats", rank=rank)["injected_tokens"] for rank in RANKS]
    assert all(b > a for a, b in zip(before, after, strict=True)), (before, after)


def test_of_fifty_facts_none_is_computed(pair, gateway):
    """What is computed is the same as behind one fact: footer and question."""
    computed = []
    for owner, count in (("few", 1), ("many", 50)):
        facts = [f"Maya saw {number} birds on day {number} of her journey." for number in range(count)]
        assert gateway.add(facts, owner)[0] == 200
        gateway.wait()
        status, answer = gateway.chat("What did Maya see?", owner, max_tokens=1,
                                      memory={"remember": False, "top_k": 50})
        assert status == 200, answer
        memory = answer["memory"]
        assert len(memory["facts"]) == count and memory["fallback"] == [], memory
        computed.append(memory["computed_tokens"])
    assert computed[0] == computed[1] < 40


def test_a_prefix_that_never_fits_is_tried_once_a_rank(pair, gateway):
    """A system text longer than a rank has KV for: it is served, with its facts as text."""
    def refused() -> list:
        return [pair.control("stats", rank=rank)["fallbacks"].get("too_large", 0) for rank in RANKS]

    text = " ".join(f"Rule {number}: be kind to bird number {number}." for number in range(210))
    for question in ("What are Maya's cats called?", "Where does Maya work?"):
        for owner in OWNERS[1:7]:
            status, answer = gateway.chat([{"role": "system", "content": text},
                                           {"role": "user", "content": question}], owner, max_tokens=2)
            assert status == 200, answer
            assert answer["usage"]["prompt_tokens"] > MOST_TOKENS
            memory = answer["memory"]
            assert len(memory["facts"]) == len(FACTS) and memory["injected_tokens"] == 0, memory
    assert max(refused()) == 1, refused()


def test_an_erasure_is_acknowledged_by_every_rank(pair, gateway):
    held = {rank: pair.files(rank) for rank in RANKS}
    plans = [pair.control("hello", rank=rank)["acknowledged"] for rank in RANKS]
    for owner in OWNERS[-4:]:
        assert request(f"{gateway.url}/v2/entities/user/{owner}/",
                       method="DELETE")[0] in (200, 204)
        gateway.wait()
    # Both carried out a plan for each, also the one that held nothing of an owner.
    for rank in RANKS:
        assert pair.control("hello", rank=rank)["acknowledged"] >= plans[rank] + 4
    gone = sum(len(held[rank] - pair.files(rank)) for rank in RANKS)
    assert gone >= 4 * len(FACTS)


def test_a_killed_server_comes_back_with_both_ranks(pair, gateway):
    def ranks_found():
        return (pair.folder / "data.log").read_text().count(" serves KV")

    held, found = {rank: pair.files(rank) for rank in RANKS}, ranks_found()
    pair.vllm.end(signal.SIGKILL)
    pair.vllm = None
    status, answer = gateway.chat("What are Maya's cats called?", OWNERS[0])
    assert status == 503, answer
    start(pair)
    # Whoever asks before is computed, and in vLLM's own prefix cache from then on.
    pair.until(lambda: ranks_found() >= found + len(RANKS))
    for owner in OWNERS[:4]:
        assert injects(gateway, owner), owner
    for rank in RANKS:
        assert pair.files(rank) >= held[rank]
        assert pair.control("hello", rank=rank)["rotation_known"]
