#!/usr/bin/env python3
"""Writes tiny random-weight GGUF models that llama.cpp loads and runs in milliseconds.

They are for tests of rotation exactness: each model has another way of giving keys their position.
The weights are f32 and depend only on the model's and the tensor's name, so files are reproducible.
They are scaled so that attention is peaked and logits differ from token to token: a wrong key
changes the answer.

Greedy decoding never ends a turn by itself, because control tokens get a logit of zero, and, but
for models with `any_bytes`, it yields printable ASCII and newlines.

    make_tiny_models.py --out DIR [--only NAME ...]

DIR/manifest.json lists the models present in DIR as [{name, file, expect, reason}]. `expect` is
"exact" (stored KV must be used and must agree with the engine), "refused" (stored KV must not be
used; the model still chats) or "exact_or_refused" (either, but never used inexactly).
"""

import argparse
import json
import os
import sys
from pathlib import Path

from gguf import GGUFWriter

from tiny_architectures import (
    TinyModel,
    decoder_tensors,
    gemma3_tensors,
    gpt2_tensors,
    llama3_tensors,
    mamba_tensors,
    phi3_tensors,
    stablelm_tensors,
)
from tiny_tokenizer import END_OF_TEXT, NO_SYSTEM_TEMPLATE, TURN_END, TinyTokenizer

NORM_EPSILON = 1e-5

MODELS = (
    TinyModel(
        name="llama_norm",
        architecture="llama",
        tensors=decoder_tensors,
        reason="plain RoPE, adjacent pairs (NORM), base 10,000",
        metadata={"rope.freq_base": 10000.0},
    ),
    TinyModel(
        name="llama_no_system",
        architecture="llama",
        tensors=decoder_tensors,
        reason="plain RoPE (NORM); the chat template raises on a system message",
        layers=2,
        metadata={"rope.freq_base": 10000.0},
        template=NO_SYSTEM_TEMPLATE,
    ),
    TinyModel(
        name="llama_no_template",
        architecture="llama",
        tensors=decoder_tensors,
        reason="plain RoPE (NORM); no chat template",
        layers=2,
        metadata={"rope.freq_base": 10000.0},
        template=None,
    ),
    TinyModel(
        name="llama3_freqs",
        architecture="llama",
        tensors=llama3_tensors,
        reason="RoPE (NORM) with Llama 3.1's frequency factors; a BOS token is added",
        context=32768,
        metadata={"rope.freq_base": 500000.0},
        add_bos=True,
    ),
    TinyModel(
        name="llama_linear",
        architecture="llama",
        tensors=decoder_tensors,
        reason="RoPE (NORM) with linear scaling by 4",
        metadata={
            "rope.freq_base": 10000.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 4.0,
        },
    ),
    TinyModel(
        name="llama_yarn",
        architecture="llama",
        tensors=decoder_tensors,
        reason="RoPE (NORM) with YaRN by 4; keys are also scaled by 1.2 * (1 + 0.1 ln 4)",
        metadata={
            "rope.freq_base": 10000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 2048,
            "rope.scaling.attn_factor": 1.2,
        },
    ),
    TinyModel(
        name="llama_f32",
        architecture="llama",
        tensors=decoder_tensors,
        reason="plain RoPE (NORM), base 500,000, context of 65,536, six layers, one KV head",
        layers=6,
        kv_heads=1,
        context=65536,
        metadata={"rope.freq_base": 500000.0},
    ),
    TinyModel(
        name="qwen2",
        architecture="qwen2",
        tensors=decoder_tensors,
        reason="RoPE in halves (NEOX), biased keys, head dimension 32; answers are any bytes",
        head_dim=32,
        context=32768,
        metadata={"rope.freq_base": 1000000.0},
        qkv_bias=True,
        any_bytes=True,
    ),
    TinyModel(
        name="qwen3",
        architecture="qwen3",
        tensors=decoder_tensors,
        reason="RoPE in halves (NEOX) after a norm of keys, head dimension 128; two"
        " user-defined tokens, which the tokenizer finds in text even with special tokens off",
        head_dim=128,
        context=32768,
        metadata={"rope.freq_base": 1000000.0},
        qk_norm=True,
        user_defined_tokens=("<think>", "</think>"),
    ),
    TinyModel(
        name="gemma3",
        architecture="gemma3",
        tensors=gemma3_tensors,
        reason="two layers of sliding window (256 tokens, base 10,000) to one of full attention"
        " (base 1,000,000, linear scaling by 8), norm of keys, no system role, BOS added",
        layers=6,
        context=32768,
        metadata={
            "rope.freq_base": 1000000.0,
            "rope.freq_base_swa": 10000.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            "attention.sliding_window": 256,
            "attention.sliding_window_pattern": 3,
        },
        template=NO_SYSTEM_TEMPLATE,
        add_bos=True,
        qk_norm=True,
    ),
    TinyModel(
        name="stablelm_partial",
        architecture="stablelm",
        tensors=stablelm_tensors,
        reason="RoPE in halves (NEOX) on the first 16 of 64 dimensions",
        embedding=256,
        metadata={"rope.freq_base": 10000.0, "rope.dimension_count": 16},
    ),
    TinyModel(
        name="smollm3_nope",
        architecture="smollm3",
        tensors=decoder_tensors,
        expect="exact_or_refused",
        reason="every fourth layer has no rotation at all: exact only if measured layer by layer",
        metadata={"rope.freq_base": 10000.0},
    ),
    TinyModel(
        name="phi3_longrope",
        architecture="phi3",
        tensors=phi3_tensors,
        expect="refused",
        reason="LongRoPE: the frequencies depend on the size of the context",
        head_dim=32,
        metadata={
            "rope.freq_base": 10000.0,
            "rope.scaling.type": "longrope",
            "rope.scaling.original_context_length": 2048,
            "rope.scaling.attn_factor": 1.19,
        },
    ),
    TinyModel(
        name="gpt2_absolute",
        architecture="gpt2",
        tensors=gpt2_tensors,
        expect="refused",
        reason="learnt absolute positions: a key at another position is not a rotation of it;"
        " positions beyond the context of 4,096 do not exist",
        head_dim=32,
        kv_heads=4,
        context=4096,
    ),
    TinyModel(
        name="qwen2vl_mrope",
        architecture="qwen2vl",
        tensors=decoder_tensors,
        expect="refused",
        reason="M-RoPE: a token has several positions, and the engine's state has more sections",
        head_dim=32,
        metadata={"rope.freq_base": 1000000.0, "rope.dimension_sections": [4, 6, 6, 0]},
        qkv_bias=True,
    ),
    TinyModel(
        name="mamba",
        architecture="mamba",
        tensors=mamba_tensors,
        expect="refused",
        reason="recurrent: there are no keys and values",
        heads=0,
        kv_heads=0,
        head_dim=0,
        feed_forward=0,
        metadata={
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 256,
            "ssm.state_size": 16,
            "ssm.time_step_rank": 8,
        },
    ),
)


def add_metadata(writer: GGUFWriter, key: str, value: int | float | str | list[int]) -> None:
    if isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def architecture_metadata(model: TinyModel) -> dict:
    metadata = {
        "context_length": model.context,
        "embedding_length": model.embedding,
        "block_count": model.layers,
        "feed_forward_length": model.feed_forward,
        "attention.head_count": model.heads,
        "attention.layer_norm_epsilon": NORM_EPSILON,
        "attention.layer_norm_rms_epsilon": NORM_EPSILON,
    }
    if model.heads > 0:
        metadata |= {
            "attention.head_count_kv": model.kv_heads,
            "attention.key_length": model.head_dim,
            "attention.value_length": model.head_dim,
        }
        if "rope.freq_base" in model.metadata:
            metadata["rope.dimension_count"] = model.head_dim
    return metadata | model.metadata


def add_tokenizer(writer: GGUFWriter, model: TinyModel, tokenizer: TinyTokenizer) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types(tokenizer.types)
    writer.add_token_merges(tokenizer.merges)
    writer.add_bos_token_id(tokenizer.token_id(END_OF_TEXT))
    writer.add_eos_token_id(tokenizer.token_id(TURN_END))
    writer.add_pad_token_id(tokenizer.token_id(END_OF_TEXT))
    writer.add_add_bos_token(model.add_bos)
    writer.add_add_eos_token(False)
    if model.template is not None:
        writer.add_chat_template(model.template)


def write_model(model: TinyModel, path: Path) -> None:
    """Writes the file whole or not at all, so that tests running side by side can share it."""
    tokenizer = TinyTokenizer(model.user_defined_tokens)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        writer = GGUFWriter(temporary, model.architecture)
        # The engine changes its tokenizer for some names (any that has "phi3" in it, for one).
        writer.add_name("tiny test model")
        writer.add_file_type(0)
        for key, value in architecture_metadata(model).items():
            add_metadata(writer, f"{model.architecture}.{key}", value)
        add_tokenizer(writer, model, tokenizer)
        for name, data in model.tensors(model, tokenizer):
            writer.add_tensor(name, data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_manifest(directory: Path) -> None:
    entries = [
        {
            "name": model.name,
            "file": f"{model.name}.gguf",
            "expect": model.expect,
            "reason": model.reason,
        }
        for model in MODELS
        if (directory / f"{model.name}.gguf").exists()
    ]
    temporary = directory / f".manifest.json.{os.getpid()}"
    temporary.write_text(json.dumps(entries, indent=2) + "\n")
    temporary.replace(directory / "manifest.json")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument(
        "--only",
        action="append",
        choices=[model.name for model in MODELS],
        metavar="NAME",
        help="make this model only; may be given several times",
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        if arguments.only is None or model.name in arguments.only:
            write_model(model, arguments.out / f"{model.name}.gguf")
    write_manifest(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
