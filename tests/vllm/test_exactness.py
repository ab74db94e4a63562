"""SmolLM2 in float32: injected KV against a cold prefill, and facts moved to other positions."""

import pathlib

import pytest
from conftest import Engine, difference, key_of, say

HEADER = "<|im_start|>system\nYou are a helpful assistant.\n\nMemories:\n"
FACTS = [
    "- (8 May 2023) Anna: parked her car at the harbour.\n",
    "- (9 June 2023) Anna: has two cats called Mimi and Tom.\n",
    "- (1 July 2023) Anna: works as a nurse in the city hospital.\n",
    "- (2 August 2023) Anna: moved from Lisbon to Porto with her sister Clara.\n",
]
TAIL = (
    "<|im_end|>\n<|im_start|>user\nWhat are Anna's cats called?<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def engine(smollm2, tmp_path_factory):
    from transformers import AutoTokenizer

    # vLLM's own default on a CPU: blocks of 128 tokens.
    engine = Engine(smollm2, tmp_path_factory.mktemp("engine"), block_size=128,
                    max_num_batched_tokens=2048)
    tokenizer = AutoTokenizer.from_pretrained(pathlib.Path(smollm2))
    engine.ids = lambda text: tokenizer(text, add_special_tokens=False).input_ids
    engine.text = tokenizer.decode
    engine.probe()
    yield engine
    engine.close()


def encode(engine, primer: list[str], fact: str) -> None:
    """Captures a fact behind the header and a primer."""
    front = engine.ids(HEADER) + [i for line in primer for i in engine.ids(line)]
    own = engine.ids(fact)
    said = engine.run(front + own, "capture",
                      [(key_of("fact", fact), len(front), len(front) + len(own))])[3]
    assert said["captured_blocks"] == 1


def compose(engine, facts: list[str], tail: str = TAIL):
    prompt = engine.ids(HEADER)
    blocks = [(key_of("prefix"), 0, len(prompt))]
    for fact in facts:
        own = engine.ids(fact)
        blocks.append((key_of("fact", fact), len(prompt), len(prompt) + len(own)))
        prompt = prompt + own
    return prompt + engine.ids(tail), blocks


def test_kv_at_its_own_positions_gives_the_same_answer(engine, request):
    prompt, blocks = compose(engine, FACTS)
    own = [(key_of("own", i), begin, end) for i, (_, begin, end) in enumerate(blocks)]
    cold = engine.run(prompt, tokens=24)
    engine.run(prompt, "capture", own)
    tokens, logprobs, cached, said = engine.run(prompt, "inject", own, tokens=24)
    assert cached == own[-1][2]  # only footer, history and question are computed
    assert said["fallback"] == {}
    assert tokens == cold[0]
    worst = difference(logprobs, cold[1])
    say(request, f"{cached} of {len(prompt)} tokens injected, 24 answered: log-probabilities differ "
                 f"from a cold prefill's by at most {worst:.1e}")
    assert worst < 1e-4
    assert "Mimi" in engine.text(tokens)


def test_relocated_facts_answer_as_text_does(engine):
    header = engine.ids(HEADER)
    engine.run(header + engine.ids("x"), "capture", [(key_of("prefix"), 0, len(header))])
    for number, fact in enumerate(FACTS):
        encode(engine, FACTS[:number] + FACTS[number + 1:], fact)
    order = [FACTS[2], FACTS[0], FACTS[3], FACTS[1]]
    prompt, blocks = compose(engine, order)
    tokens, _, cached, said = engine.run(prompt, "inject", blocks, tokens=16)
    assert cached == blocks[-1][2] and said["fallback"] == {}
    assert "Mimi" in engine.text(tokens) and "Tom" in engine.text(tokens)


def test_a_wrong_rotation_would_be_seen(engine):
    """Facts injected a few places off must answer differently, or the test above proves nothing."""
    prompt, blocks = compose(engine, FACTS)
    own = [(key_of("own", i), begin, end) for i, (_, begin, end) in enumerate(blocks)]
    cold = engine.run(prompt, tokens=1)
    # The fourth fact's tokens again, but encoded with nothing in front of it.
    last = blocks[-1]
    engine.run(prompt[last[1]:last[2]] + [9], "capture", [(key_of("bare"), 0, last[2] - last[1])])
    bare = own[:-1] + [(key_of("bare"), last[1], last[2])]
    assert difference(engine.run(prompt, "inject", bare)[1], cold[1]) > 1e-3


def test_a_long_system_prompt_is_injected_too(engine, request):
    system = "<|im_start|>system\n" + "You answer in one short sentence and never lie. " * 180
    prompt = engine.ids(system + "\n\nMemories:\n")
    assert len(prompt) > 1800
    blocks = [(key_of("long"), 0, len(prompt))]
    prompt = prompt + engine.ids(FACTS[1])
    blocks.append((key_of("long fact"), blocks[0][2], len(prompt)))
    prompt = prompt + engine.ids(TAIL)
    cold = engine.run(prompt, tokens=4)
    engine.run(prompt, "capture", blocks)
    tokens, logprobs, cached, _ = engine.run(prompt, "inject", blocks, tokens=4)
    assert cached == blocks[1][2]
    worst = difference(logprobs, cold[1])
    say(request, f"{cached} of {len(prompt)} tokens injected, {blocks[0][2]} of them before the facts: "
                 f"at most {worst:.1e}")
    assert tokens == cold[0] and worst < 1e-4
