"""The gateway in front of vLLM's API server, each a process of its own, the whole way.

One API server serves the module; it is killed and started again in the middle.
"""

import json
import math
import os
import pathlib
import signal
import subprocess

import pytest
from conftest import say
from serving import BINARY, Gateway, Pair, request

FACTS = [
    "Maya parked her car at the harbour.",
    "Maya has two cats called Mimi and Tom.",
    "Maya works as a nurse in the city hospital.",
    "Maya moved from Lisbon to Porto with her sister Clara.",
    "Maya plays the cello on Sundays.",
    "Maya is allergic to peanuts.",
]


@pytest.fixture(scope="module")
def pair(smollm2, tmp_path_factory):
    assert BINARY.exists(), f"{BINARY} is missing; build it, or name it in INFERSCALE_BINARY_PATH"
    pair = Pair(tmp_path_factory.mktemp("pair"), smollm2)
    try:
        pair.start_vllm()
        yield pair
    finally:
        pair.end()


@pytest.fixture(scope="module")
def gateway(pair):
    return Gateway(pair, pair.start_gateway("data", pair.flags()))


def test_doctor_checks_a_running_pair(pair):
    done = subprocess.run([str(BINARY), "doctor", "--json", "--data-dir", str(pair.folder / "doctor"),
                           "--extractor-url", "http://127.0.0.1:9/v1", "--extractor-model", "none",
                           *pair.flags()], env=os.environ | pair.environment(),
                          capture_output=True, text=True, timeout=170)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stdout
    assert checks["kv_injection"]["ok"] and checks["encoding"]["ok"], checks
    assert "erased again" in checks["encoding"]["detail"]
    assert pair.control("stats")["blocks"] == 0  # also the exact prefix went


def test_ten_turns_with_memories(pair, gateway):
    assert gateway.add(FACTS, "maya")[0] == 200
    gateway.wait()
    assert pair.control("stats")["blocks"] >= len(FACTS)
    messages, injected = [], []
    for turn in range(10):
        messages.append({"role": "user", "content": f"Question {turn}: what are Maya's cats called?"})
        status, answer = gateway.chat(messages, "maya")
        assert status == 200, answer
        memory = answer["memory"]
        assert {fact["memory"] for fact in memory["facts"]} == set(FACTS)
        assert (memory["injected_tokens"] + memory["reused_tokens"] + memory["computed_tokens"]
                == answer["usage"]["prompt_tokens"])
        injected.append(memory["injected_tokens"])
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    assert injected[0] > 60
    assert "Mimi" in messages[1]["content"]


def test_a_stream_says_the_same(gateway):
    whole = gateway.chat("What are Maya's cats called?", "maya")[1]["choices"][0]["message"]["content"]
    status, text = gateway.chat("What are Maya's cats called?", "maya", stream=True)
    assert status == 200
    pieces = [json.loads(line[6:]) for line in text.splitlines()
              if line.startswith("data: {")]
    streamed = "".join(choice["delta"].get("content") or "" for piece in pieces
                       for choice in piece.get("choices", []))
    assert streamed == whole


def test_tools_and_forms_are_refused_by_name(gateway):
    """A form in vLLM's hands: a grammar that it cannot read would end it for everybody."""
    tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
    schema = {"name": "cats", "schema": {"type": "object", "properties": {"cats": {"type": "integer"}}}}
    for refused in ({"tools": [tool]},
                    {"response_format": {"type": "json_schema", "json_schema": schema}}):
        status, answer = gateway.chat("How many cats has Maya?", "maya", **refused)
        assert status == 400 and answer["error"]["code"] == "unsupported_parameter", answer


def test_update_delete_forget(pair, gateway):
    by_text = {item["memory"]: item["id"] for item in gateway.memories("maya")}
    before = pair.files()
    car = by_text[FACTS[0]]
    assert request(f"{gateway.url}/v1/memories/{car}/", {"text": "Maya sold her car."}, "PUT")[0] == 200
    gateway.wait()
    cello = by_text[FACTS[4]]
    assert request(f"{gateway.url}/v1/memories/{cello}/", method="DELETE")[0] in (200, 204)
    gateway.wait()
    # Both old blocks are gone from the disk, without any chat in between.
    assert len(before - pair.files()) >= 2
    status, answer = gateway.chat("What does Maya play?", "maya")
    texts = [fact["memory"] for fact in answer["memory"]["facts"]]
    assert status == 200 and FACTS[4] not in texts and "Maya sold her car." in texts
    assert gateway.add(FACTS[:2], "noor")[0] == 200
    gateway.wait()
    gateway.chat("What are Maya's cats called?", "noor")
    held = pair.files()
    assert request(f"{gateway.url}/v2/entities/user/noor/", method="DELETE")[0] in (200, 204)
    gateway.wait()
    assert len(held - pair.files()) >= 2
    status, answer = gateway.chat("What are Maya's cats called?", "noor")
    assert status == 200 and answer["memory"]["facts"] == []


def test_two_owners_share_no_kv(pair, gateway):
    """The same facts of another owner are other blocks; neither sees the other's."""
    blocks = pair.control("stats")["blocks"]
    assert gateway.add(FACTS[1:3], "ada")[0] == 200
    gateway.wait()
    assert pair.control("stats")["blocks"] >= blocks + 2


def test_a_killed_server_comes_back(pair, gateway):
    known = pair.control("stats")["blocks"]
    pair.vllm.end(signal.SIGKILL)
    pair.vllm = None
    status, answer = gateway.chat("What are Maya's cats called?", "maya")
    assert status == 503, answer
    # Memory itself does not need vLLM.
    assert gateway.add(["Maya learnt to sail last summer."], "maya")[0] == 200
    found = request(f"{gateway.url}/v2/memories/search/", {
        "query": "sailing", "filters": {"user_id": "maya"}})
    assert found[0] == 200 and "sail" in json.dumps(found[1])
    pair.start_vllm()
    gateway.wait()

    def injects() -> bool:
        status, answer = gateway.chat("What are Maya's cats called?", "maya")
        return status == 200 and answer["memory"]["injected_tokens"] > 60

    pair.until(injects)
    assert pair.control("stats")["blocks"] > known  # those of the files, and the new fact


def test_forget_reaches_vllm_too(pair, gateway):
    """Forgetting is done while the service is stopped; its KV is gone from vLLM's disk with it."""
    pair.gateways.pop(0).end()
    held = pair.files()
    done = subprocess.run([str(BINARY), "forget", "--all", "--yes", "--user", "ada", "--data-dir",
                           str(pair.folder / "data"), *pair.flags()],
                          env=os.environ | pair.environment(), capture_output=True, text=True,
                          timeout=170)
    assert done.returncode == 0 and done.stdout.startswith("2 "), done
    assert len(held - pair.files()) >= 2
    gateway.url = pair.start_gateway("data", pair.flags())


def float_gguf(smollm2: str, folder: pathlib.Path) -> pathlib.Path:
    """The GGUF that the Hugging Face folder was made of, in float32."""
    import gguf

    cache = pathlib.Path(smollm2).parent
    reader = gguf.GGUFReader(cache / "SmolLM2-135M-Instruct-Q4_1.gguf")
    target = folder / "SmolLM2-f32.gguf"
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name == "general.architecture" or name.startswith("GGUF."):
            continue
        value = 0 if name == "general.file_type" else field.contents()
        inner = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(name, value, field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_agrees_with_the_embedded_engine(pair, gateway, smollm2, tmp_path, request):
    """Same facts, recipe and question: relocated KV, float32 weights, two engines.

    The embedded engine keeps KV in f16, which is what separates the two.
    """
    model = float_gguf(smollm2, tmp_path)
    other = Gateway(pair, pair.start_gateway("embedded", [
        "--model", str(model), "--codec", "f32", "--context-tokens", "2048"]))
    worst = 0.0
    for one in (gateway, other):
        assert one.add(FACTS[:4], "agree")[0] == 200
        one.wait()
    for question in ("What are Maya's cats called?", "Where does Maya work?"):
        answers = []
        for one in (gateway, other):
            status, answer = one.chat(question, "agree", max_tokens=8, logprobs=True, top_logprobs=5)
            assert status == 200, answer
            answers.append(answer)
        ours, theirs = answers
        assert ours["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]
        for answer in answers:
            assert answer["memory"]["injected_tokens"] > 60, answer["memory"]
        first = [{top["token"]: top["logprob"]
                  for top in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}
                 for answer in answers]
        both = first[0].keys() & first[1].keys()
        assert len(both) >= 4
        worst = max(worst, *(abs(first[0][token] - first[1][token]) for token in both))
        assert (ours["choices"][0]["message"]["content"]
                == theirs["choices"][0]["message"]["content"])
    say(request, f"the embedded engine's first-token log-probabilities differ by at most {worst:.1e}")
    assert math.isfinite(worst) and worst < 0.02
