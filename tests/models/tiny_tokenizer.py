"""A small byte-level BPE tokenizer and the chat templates of the generated test models.

The tokenizer is a real one: all 256 bytes are tokens, so any input can be encoded, and the merges
are learnt from the text below, so ordinary English and some Chinese get tokens of several bytes.
"""

import re
from collections import Counter
from itertools import pairwise

MERGE_COUNT = 320

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)

# Values of tokenizer.ggml.token_type.
TYPE_NORMAL = 1
TYPE_CONTROL = 3
TYPE_USER_DEFINED = 4

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Like Gemma's: no system role, and the roles must alternate.
NO_SYSTEM_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}"
    "{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_TRAINING_TEXT = """
You are a helpful assistant. Answer the question with what you know about the user.
Here are some facts about the user and the people around them.
- On 3 May 2023 Anna said that she moved to the city with her two cats and a small dog.
- On 14 June 2023 Peter told Anna that he is going to start a new job at the library next week.
- On 20 July 2024 Anna and Peter went hiking in the mountains and stayed there for three nights.
- Peter likes to play the guitar and the piano; his sister Mary is a teacher in another town.
- Anna wants to learn how to paint, and she has been taking a class every Thursday evening.
- The weather was cold, so they stayed at home, cooked dinner together and watched an old movie.
- She thinks that working from home is better for her health, but he would rather be with people.
- They have been talking about their plans for the summer: the sea, the forest or the lake.
- Her favourite book is about the history of the ocean. What is your favourite book?
- He doesn't eat meat, and he's allergic to nuts. I'll remember that, and you'll have to ask him.
When did she move? Where does he work? Who is going with them? Why was it important? How much?
What did you say about the party? I said that we should invite everyone who helped with the house.
The quick brown fox jumps over the lazy dog. It was the first time that something like this
happened, and nobody could understand what it meant until the next morning.
Thank you for telling me. That sounds wonderful! I am happy to hear that you are feeling better.
Could you please help me with this? Of course, let me think about it for a moment.
system user assistant name date time day week month year people family friend work school home
January February March April May June July August September October November December
Monday Tuesday Wednesday Thursday Friday Saturday Sunday 2020 2021 2022 2023 2024 2025 2026
the of and to in that is was he for it with as his on be at by had not are but from or have an they
which one you were her all she there would their we him been has when who will more no if out so
我喜欢在周末和朋友一起去爬山。她的生日是五月三日。他在北京工作，我们住在上海。
你喜欢什么？我喜欢喝茶，也喜欢看书。他们明天要去学校。今天天气很好，我们一起去公园吧。
"""

_PIECES = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+|\d| ?[^\s\w]+|\s+")


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte in a byte-level BPE vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in symbols:
            symbols[byte] = chr(256 + len(symbols) - len(printable))
    return [symbols[byte] for byte in range(256)]


def learn_merges(text: str, count: int) -> list[tuple[str, str]]:
    """The `count` most frequent merges, greedily; ties go to the pair that sorts first."""
    symbols = byte_symbols()
    words = Counter(
        tuple(symbols[byte] for byte in piece.encode("utf-8")) for piece in _PIECES.findall(text)
    )
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter = Counter()
        for word, frequency in words.items():
            for pair in pairwise(word):
                pairs[pair] += frequency
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged: Counter = Counter()
        for word, frequency in words.items():
            joined: list[str] = []
            for symbol in word:
                # "aaa" must merge left to right, so a symbol made by this merge is not reused.
                if joined and (joined[-1], symbol) == best:
                    joined[-1] = joined[-1] + symbol
                else:
                    joined.append(symbol)
            merged[tuple(joined)] += frequency
        words = merged
    return merges


class TinyTokenizer:
    """Token texts, types and merges in the form that GGUF stores them."""

    def __init__(self, user_defined: tuple[str, ...] = ()) -> None:
        symbols = byte_symbols()
        merges = learn_merges(_TRAINING_TEXT, MERGE_COUNT)
        learnt = list(dict.fromkeys(left + right for left, right in merges))
        self.merges = [f"{left} {right}" for left, right in merges]
        self.tokens = [*symbols, *learnt, *CONTROL_TOKENS, *user_defined]
        self.types = (
            [TYPE_NORMAL] * (len(symbols) + len(learnt))
            + [TYPE_CONTROL] * len(CONTROL_TOKENS)
            + [TYPE_USER_DEFINED] * len(user_defined)
        )
        self.first_special = len(symbols) + len(learnt)
        self._byte_of = {symbol: byte for byte, symbol in enumerate(symbols)}

    def token_id(self, token: str) -> int:
        return self.tokens.index(token)

    def is_plain_text(self, token_id: int) -> bool:
        """Whether the token is printable ASCII and newlines: sequences of them are UTF-8."""
        if self.types[token_id] != TYPE_NORMAL:
            return False
        data = [self._byte_of[symbol] for symbol in self.tokens[token_id]]
        return all(0x20 <= byte < 0x7F or byte == 0x0A for byte in data)
