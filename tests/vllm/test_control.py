"""The control socket of a real engine, and whoever should not be on it."""

import json
import os
import socket
import stat
import time

import pytest
from conftest import Engine, key_of
from test_bookkeeping import BLOCK, ids, spans

from inferscale.vllm.control import ControlClient, ControlError, NothingStored, mac_of


@pytest.fixture(scope="module")
def engine(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("control")
    engine = Engine(tiny_model, folder, block_size=BLOCK, max_num_batched_tokens=2048,
                    extra={"control_socket": str(folder / "socket"), "folder": str(folder / "kv")})
    engine.path, engine.folder = str(folder / "socket"), folder
    with ControlClient(engine.path, engine.secret) as client:
        assert not client.call("hello")["rotation_known"]
    engine.probe()
    yield engine
    engine.close()
    assert not os.path.exists(engine.path)


@pytest.fixture
def client(engine):
    with ControlClient(engine.path, engine.secret) as client:
        yield client


def test_says_what_it_is(engine, client):
    hello = client.call("hello")
    assert hello["rotation_known"] and hello["refusal"] == ""
    assert (hello["layers"], hello["kv_heads"], hello["head_dim"]) == (4, 2, 32)
    assert (hello["codec"], hello["ranks"], len(hello["fingerprint"])) == ("f32", 1, 64)
    assert stat.S_IMODE(os.stat(engine.path).st_mode) == 0o600


def test_presence_erasure_and_acknowledgement(engine, client):
    prompt = ids(100, 300)
    blocks = [(key_of("c", i), b, e) for i, (b, e) in enumerate(spans(40, 50))]
    keys = [key.hex() for key, _, _ in blocks]
    assert client.call("presence", keys=keys)["ready"] == [False, False]
    engine.run(prompt, "capture", blocks)
    assert client.call("presence", keys=keys)["ready"] == [True, True]
    erased = client.call("erase", keys=keys[1:])
    assert client.call("presence", keys=keys)["ready"] == [True, False]
    assert erased["acknowledged"] < erased["plan"]
    engine.run(ids(5, 301))  # any step carries the plan out
    assert client.call("hello")["acknowledged"] >= erased["plan"]
    assert not list(engine.folder.rglob(f"{keys[1]}*"))
    erased = client.call("erase_scope", scope="0000000000000007", epoch=1)
    assert client.call("presence", keys=keys)["ready"] == [False, False]
    engine.run(ids(5, 302))
    assert client.call("stats")["acknowledged"] >= erased["plan"]
    assert not list(engine.folder.rglob("*.kvb"))


def test_reports_by_the_requests_mac(engine, client):
    prompt = ids(60, 310)
    blocks = [(key_of("r"), 0, 50)]
    engine.run(prompt, "capture", blocks)
    transfer = engine.transfer("inject", prompt, blocks, "report")
    assert not client.call("report", mac=transfer["mac"])["found"]
    engine.run(prompt, transfer=transfer, salt="report")
    report = client.call("report", mac=transfer["mac"])
    assert report == {"found": True, "injected_tokens": 50, "captured_blocks": 0, "fallback": {}}
    assert client.call("stats")["injected_tokens"] >= 50


def send(path: str, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.settimeout(10)
        raw.connect(path)
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        received = b""
        while part := raw.recv(65536):
            received += part
        return received


def test_whoever_lacks_the_secret_gets_nothing(engine):
    text = json.dumps({"operation": "stats", "expires_ms": int(time.time() * 1000) + 9999})
    for mac in ("", "0" * 64, mac_of(b"another secret", "control 1\n", text), None, 7):
        assert send(engine.path, json.dumps({"body": text, "mac": mac}).encode() + b"\n") == b""
    for data in (b"", b"\n", b"[]\n", b"\xff\xfe\n", b"{}\n", b"[" * 100000 + b"\n", b"x" * 100000,
                 b'{"body": 1, "mac": "x"}\n'):
        assert send(engine.path, data) == b""
    with pytest.raises(ControlError, match="secret"):
        with ControlClient(engine.path, b"another secret of 20") as client:
            client.call("hello")


def test_bad_requests_are_answered_in_words(client):
    for operation, fields, words in (
            ("nothing", {}, "operation"), ("presence", {}, "keys"), ("erase", {"keys": ["zz"]}, "keys"),
            ("erase", {"keys": [], "scope": "7"}, "scope"), ("erase", {"keys": [], "epoch": 1}, "scope"),
            ("presence", {"keys": "00"}, "keys"), ("erase_scope", {"scope": "7", "epoch": 1}, "scope"),
            ("erase_scope", {"scope": "0" * 16, "epoch": -1}, "epoch"),
            ("erase_scope", {"scope": "0" * 16, "epoch": True}, "epoch"),
            ("hello", {"expires_ms": 5}, "expires_ms"), ("hello", {"expires_ms": None}, "expires_ms")):
        with pytest.raises(ControlError, match=words):
            client.call(operation, **fields)
    assert client.call("hello")["schema"] == 1


def test_a_second_engine_does_not_take_a_socket_that_is_served(engine, tmp_path):
    from inferscale.vllm.control import remove_stale

    import pathlib

    with pytest.raises(FileExistsError, match="another engine"):
        remove_stale(pathlib.Path(engine.path))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="no socket"):
        remove_stale(tmp_path / "file")
    stale = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.bind(str(stale))
    remove_stale(stale)
    assert not stale.exists()


def test_a_capture_asked_for_before_its_erasure_stores_nothing(engine, client):
    """Last: it fences the scope that all tests share."""
    prompt = ids(60, 320)
    blocks = [(key_of("late"), 0, 50)]
    asked = engine.transfer("capture", prompt, blocks, "late", epoch=3)
    client.call("erase", keys=[blocks[0][0].hex()], scope="0000000000000007", epoch=4)
    said = engine.run(prompt, transfer=asked, salt="late")[3]
    assert said["captured_blocks"] == 0 and said["fallback"] == {"erased": 1}
    assert client.call("presence", keys=[blocks[0][0].hex()])["ready"] == [False]
    assert engine.run(prompt, "capture", blocks, epoch=4)[3]["captured_blocks"] == 1


def test_an_engine_that_serves_text_alone_erases_nothing_that_an_earlier_start_has_left(tmp_path):
    side = NothingStored("a reason", str(tmp_path))
    assert side.erase([b"k" * 16], 1, 2) == side.erase_scope(1, 2) == side.acknowledged_plan
    (tmp_path / "rank-0").mkdir()
    with pytest.raises(ControlError, match="remove that folder"):
        side.erase_scope(1, 2)
