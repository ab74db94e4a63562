"""Converts all-MiniLM-L6-v2 from safetensors to the GGUF that llama.cpp runs as a BERT embedder.

Matrices become f16, vectors stay f32. Pooling is the mean over tokens; the caller normalises.

  convert_minilm.py MODEL_FOLDER OUTPUT.gguf [--check]

--check reads the written file back, runs it in numpy beside the original f32 weights, and fails
unless the embeddings of a few sentences agree to a cosine of 0.99999.
"""

import argparse
import json
import math
import pathlib
import sys
import unicodedata

import gguf
import numpy as np
import safetensors.numpy

MINIMUM_COSINE = 0.99999

# GGUF name of each tensor, by its name in the safetensors file.
GLOBAL_TENSORS = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}
LAYER_TENSORS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}

CHECK_SENTENCES = [
    "Where did Anna spend her summer holiday?",
    "- (2023-05-07) Tom: He adopted a three-legged cat named Biscuit.",
    "The quick brown fox jumps over the lazy dog, again and again.",
    "café naïve Zürich – 42 %",
    "我住在北京，喜欢喝茶。",
    "a",
]


def tensor_names(layers: int) -> dict[str, str]:
    names = dict(GLOBAL_TENSORS)
    for layer in range(layers):
        for source, target in LAYER_TENSORS.items():
            for part in ("weight", "bias"):
                names[f"encoder.layer.{layer}.{source}.{part}"] = f"blk.{layer}.{target}.{part}"
    return names


def convert(folder: pathlib.Path, output: pathlib.Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    if len(vocabulary) != config["vocab_size"]:
        sys.exit(f"vocab.txt has {len(vocabulary)} tokens, config.json says {config['vocab_size']}")

    writer = gguf.GGUFWriter(output, "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)

    # llama.cpp's WordPiece marks the starts of words, where BERT's vocabulary marks continuations.
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    tokens, types = [], []
    for token in vocabulary:
        is_special = token in special or (token.startswith("[unused") and token.endswith("]"))
        types.append(gguf.TokenType.CONTROL if is_special else gguf.TokenType.NORMAL)
        if is_special:
            tokens.append(token)
        else:
            tokens.append(token[2:] if token.startswith("##") else "\u2581" + token)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_bos_token_id(vocabulary.index("[CLS]"))
    writer.add_eos_token_id(vocabulary.index("[SEP]"))
    writer.add_unk_token_id(vocabulary.index("[UNK]"))
    writer.add_sep_token_id(vocabulary.index("[SEP]"))
    writer.add_pad_token_id(vocabulary.index("[PAD]"))
    writer.add_mask_token_id(vocabulary.index("[MASK]"))

    for source, target in tensor_names(config["num_hidden_layers"]).items():
        data = np.ascontiguousarray(tensors[source])
        # llama.cpp adds positions and token types elementwise in f32.
        keep = data.ndim == 1 or target in ("position_embd.weight", "token_types.weight")
        writer.add_tensor(target, data.astype(np.float32 if keep else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def word_pieces(text: str, vocabulary: dict[str, int]) -> list[int]:
    """BERT's uncased tokenisation, with [CLS] and [SEP]."""
    words, word = [], ""
    for char in unicodedata.normalize("NFD", text.lower()):
        category = unicodedata.category(char)
        if category == "Mn":
            continue
        alone = category.startswith("P") or char in "$+<=>^`|~" or 0x4E00 <= ord(char) <= 0x9FFF
        if char.isspace() or alone:
            words += [word] if word else []
            words += [char] if alone else []
            word = ""
        else:
            word += char
    words += [word] if word else []

    ids = [vocabulary["[CLS]"]]
    for word in words:
        pieces, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = vocabulary.get(("##" if start else "") + word[start:end])
                if piece is not None:
                    pieces.append(piece)
                    start = end
                    break
            else:
                pieces = [vocabulary["[UNK]"]]
                break
        ids += pieces
    return ids + [vocabulary["[SEP]"]]


def embed(weights: dict[str, np.ndarray], config: dict, ids: list[int]) -> np.ndarray:
    """The model in double precision; `weights` by GGUF name. Returns a unit vector."""
    heads = config["num_attention_heads"]
    width = config["hidden_size"] // heads

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return centred / scale * weights[name + ".weight"] + weights[name + ".bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[name + ".weight"].T + weights[name + ".bias"]

    x = weights["token_embd.weight"][ids] + weights["position_embd.weight"][: len(ids)]
    x = norm(x + weights["token_types.weight"][0], "token_embd_norm")
    erf = np.vectorize(math.erf)
    for layer in range(config["num_hidden_layers"]):
        block = f"blk.{layer}."
        q, k, v = (
            linear(x, block + name).reshape(len(ids), heads, width).transpose(1, 0, 2)
            for name in ("attn_q", "attn_k", "attn_v")
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(width)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed = (scores @ v).transpose(1, 0, 2).reshape(len(ids), -1)
        x = norm(x + linear(mixed, block + "attn_output"), block + "attn_output_norm")
        hidden = linear(x, block + "ffn_up")
        hidden = hidden * 0.5 * (1 + erf(hidden / math.sqrt(2)))
        x = norm(x + linear(hidden, block + "ffn_down"), block + "layer_output_norm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def check(folder: pathlib.Path, output: pathlib.Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    vocabulary = {token: index for index, token in enumerate(lines)}
    source = safetensors.numpy.load_file(folder / "model.safetensors")
    names = tensor_names(config["num_hidden_layers"])
    original = {target: source[name].astype(np.float64) for name, target in names.items()}
    converted = {
        tensor.name: tensor.data.astype(np.float64)
        for tensor in gguf.GGUFReader(output).tensors
    }
    worst = 1.0
    for sentence in CHECK_SENTENCES:
        ids = word_pieces(sentence, vocabulary)
        cosine = float(embed(original, config, ids) @ embed(converted, config, ids))
        worst = min(worst, cosine)
    print(f"worst cosine over {len(CHECK_SENTENCES)} sentences: {worst:.7f}", file=sys.stderr)
    if not worst >= MINIMUM_COSINE:
        sys.exit(f"the converted embedder is off: cosine {worst:.7f}, below {MINIMUM_COSINE}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--check", action="store_true", help="compare with the original weights")
    arguments = parser.parse_args()
    convert(arguments.folder, arguments.output)
    if arguments.check:
        check(arguments.folder, arguments.output)


if __name__ == "__main__":
    main()
