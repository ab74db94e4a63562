#!/usr/bin/env python3
"""Writes a Llama-architecture GGUF as a Hugging Face folder in float32, for vLLM.

  dequantise_model.py MODEL.gguf FOLDER

llama.cpp stores query and key rows in the order of interleaved rotation; Hugging Face's rotate
halves, so their rows are put back. The folder appears whole or not at all.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hugging_face_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"
    return f"{TOP[parts[0]]}.{parts[1]}"


def halves_from_interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    dim = rows.shape[0] // heads
    pairs = rows.reshape(heads, dim // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def convert(source: pathlib.Path, folder: pathlib.Path) -> None:
    reader = gguf.GGUFReader(source)

    def value(key: str):
        field = reader.get_field(f"llama.{key}")
        if field is None:
            raise SystemExit(f"{source}: no llama.{key}; only Llama-architecture files are converted")
        return field.contents()

    heads, kv_heads = value("attention.head_count"), value("attention.head_count_kv")
    weights = {}
    for tensor in reader.tensors:
        data = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = hugging_face_name(tensor.name)
        if ".q_proj." in name or ".k_proj." in name:
            data = halves_from_interleaved(data, heads if ".q_proj." in name else kv_heads)
        weights[name] = torch.from_numpy(np.ascontiguousarray(data))
    tied = "lm_head.weight" not in weights
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base"),
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "bos_token_id": reader.get_field("tokenizer.ggml.bos_token_id").contents(),
        "eos_token_id": reader.get_field("tokenizer.ggml.eos_token_id").contents(),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        tokenizer.save_pretrained(temporary)
        (temporary / "config.json").write_text(json.dumps(config, indent=1))
        save_file(weights, temporary / "model.safetensors", metadata={"format": "pt"})
        temporary.chmod(0o755)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    convert(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
