"""One real vLLM engine a model and session, in this process, with the connector.

INFERSCALE_TEST_VLLM_DEVICE: `cpu` (default); `cuda`, with CUDA graphs, in the dtype of
INFERSCALE_TEST_VLLM_DTYPE (bfloat16); `host`: on the CPU, but through the worker's device path, where
the CPU's cache has strides. VLLM_USE_V2_MODEL_RUNNER=1 picks vLLM's other model runner.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import time

import pytest

os.environ.update(
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    OMP_NUM_THREADS="2",
    OMP_WAIT_POLICY="PASSIVE",
    VLLM_CPU_KVCACHE_SPACE="1",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="WARNING",
)

DEVICE = os.environ.get("INFERSCALE_TEST_VLLM_DEVICE", "cpu")
if DEVICE != "cuda":
    # 0.24 compiles a few operations at every start of a CPU's worker, for ten seconds.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
DTYPE = os.environ.get("INFERSCALE_TEST_VLLM_DTYPE", "bfloat16" if DEVICE == "cuda" else "float32")
# Log-probabilities of the same KV computed in another batch shape differ by the type's rounding: a
# logit between 16 and 32 has neighbours 1/8 away in bfloat16, and two of them make a difference.
EXACT = {"float32": 1e-4 if DEVICE != "cuda" else 1e-3, "float16": 0.04, "bfloat16": 0.26}[DTYPE]
ROOT = pathlib.Path(__file__).resolve().parents[2]
SCOPE = 7


def key_of(*parts) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()[:16]


class Engine:
    """A vLLM engine, its secret, and its connector's two sides."""

    def __init__(self, model: str, folder: pathlib.Path, **options):
        from vllm import LLM

        from inferscale.vllm import InferScaleConnector
        from inferscale.vllm.worker import WorkerSide

        if DEVICE == "host":
            WorkerSide.devices = ("cpu",)
        self.secret = secrets.token_bytes(32).hex().encode()
        secret_file = folder / "secret"
        secret_file.write_bytes(self.secret)
        secret_file.chmod(0o600)
        extra = {"secret_file": str(secret_file), "codec": "f32", "host_bytes": "256M",
                 "gpu_bytes": "64M"}
        extra |= options.pop("extra", {})
        made = []
        original = InferScaleConnector.__init__

        def remember(connector, *arguments, **keywords):
            original(connector, *arguments, **keywords)
            made.append(connector)

        InferScaleConnector.__init__ = remember
        try:
            self.llm = LLM(
                model=model,
                dtype=options.pop("dtype", DTYPE),
                enforce_eager=options.pop("enforce_eager", DEVICE != "cuda"),
                skip_tokenizer_init=True,
                max_model_len=options.pop("max_model_len", 2048),
                max_num_seqs=8,
                # Recovery is wrong under it in 0.24 (settings.py); a CPU has none.
                **({"async_scheduling": False} if DEVICE == "cuda" else {}),
                # Not a share of what is free, which other engines on that GPU would change meanwhile.
                **({"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 30}
                   if DEVICE == "cuda" else {}),
                kv_transfer_config={
                    "kv_connector": "InferScaleConnector",
                    "kv_connector_module_path": "inferscale.vllm",
                    "kv_role": "kv_both",
                    "kv_load_failure_policy": options.pop("policy", "recompute"),
                    "kv_connector_extra_config": extra,
                },
                **options,
            )
        finally:
            InferScaleConnector.__init__ = original
        # What the connector has made of the policy (settings.fails_instead_of_recomputing).
        config = self.llm.llm_engine.vllm_config.kv_transfer_config
        self.recomputes = config.kv_load_failure_policy == "recompute"
        self.scheduler = next(c.scheduler for c in made if c.scheduler is not None)
        # With several ranks the workers are processes of their own.
        self.worker = next((c.worker for c in made if c.worker is not None), None)
        self.connectors = made
        self._salts = 0

    def close(self) -> None:
        """vLLM keeps one worker's connector a process: the next engine needs a place for its own."""
        from vllm.distributed.kv_transfer.kv_transfer_state import ensure_kv_transfer_shutdown

        for connector in self.connectors:
            connector.shutdown()
        self.llm.llm_engine.engine_core.shutdown()
        ensure_kv_transfer_shutdown()

    def transfer(self, operation, prompt, blocks, salt, epoch=1, seconds=60, secret=None):
        from inferscale import _native

        return _native.sign_transfer(
            operation, salt=salt, scope_tag=SCOPE, epoch=epoch,
            expires_ms=int((time.time() + seconds) * 1000), blocks=blocks, prompt=prompt,
            secret=secret or self.secret)

    def assert_recovered(self, got, cold) -> None:
        """After a load that failed: computed, or, where the engine cannot, ended without an answer."""
        if self.recomputes or got[0]:
            assert_same(got, cold)

    def fresh_salt(self) -> str:
        self._salts += 1
        return f"salt {self._salts}"

    def run(self, prompt, operation=None, blocks=(), *, salt=None, tokens=1, transfer=None,
            **signing):
        """(token ids, log-probabilities a token, cached tokens, what the connector says)."""
        from vllm import SamplingParams

        salt = self.fresh_salt() if salt is None else salt
        sampling = SamplingParams(temperature=0, max_tokens=tokens, logprobs=5, detokenize=False,
                                  ignore_eos=True)
        if operation is not None:
            transfer = self.transfer(operation, prompt, list(blocks), salt, **signing)
        if transfer is not None:
            sampling.extra_args = {"kv_transfer_params": {"inferscale": transfer}}
        request = {"prompt_token_ids": list(prompt), "cache_salt": salt}
        output = self.llm.generate(request, sampling, use_tqdm=False)[0]
        answer = output.outputs[0]
        logprobs = [{i: p.logprob for i, p in place.items()} for place in answer.logprobs]
        said = (output.kv_transfer_params or {}).get("inferscale", {})
        return list(answer.token_ids), logprobs, output.num_cached_tokens, said

    def probe(self) -> None:
        # 1025: the places 0, 1, 4, …, 1024 that the measurement reads.
        said = self.run([5] * 1025, "probe")[3]
        known, counters = self.scheduler.native.rotation_known, self.scheduler.native.counters()
        assert known, f"{counters['refusal']}; {said}"


@contextlib.contextmanager
def lost_before_load(worker, key: bytes):
    """A rank loses the block between the lookup and the load of the next plan; the value lists that plan."""
    from inferscale import _native

    begin, plans = worker.start_load, []

    def lose(plan):
        if plan is not None and not plans:
            plans.append(plan)
            other = _native.Scheduler(secret=b"x" * 16, budget_bytes=1, token_bytes=1, ranks=1)
            other.erase([key])
            worker.native.begin(other.take_plan())
        begin(plan)

    worker.start_load = lose
    try:
        yield plans
    finally:
        worker.start_load = begin


def difference(a, b) -> float:
    """The largest difference of log-probabilities that both sides name, over all tokens; infinite
    where they name no token in common. Relative to those beyond 16, which rounding makes coarser."""
    return max((abs(x[i] - y[i]) / max(1, abs(x[i]) / 16)
                for x, y in zip(a, b, strict=True) for i in x.keys() & y.keys()),
               default=float("inf"))


def assert_same(got, cold) -> None:
    """(tokens, log-probabilities, ...) of the same KV, computed in passes of another shape. Where the
    best two tokens are closer than rounding, either may come, and the texts part."""
    assert len(got[0]) == len(cold[0])
    for place, (token, expected) in enumerate(zip(got[0], cold[0], strict=True)):
        there, here = cold[1][place], got[1][place]
        assert difference([here], [there]) < EXACT, f"token {place}"
        if token != expected:
            assert there[expected] - there.get(token, -1e9) < EXACT, f"token {place}"
            return


def say(request, what: str) -> None:
    """A figure for people, also where pytest keeps output to itself."""
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{what}")


# Heads of 64: every attention kernel of a GPU takes them.
TINY_DIM = 64 if DEVICE == "cuda" else 32


def write_tiny(folder: pathlib.Path, vocabulary: int, seed: int, further, scales, **config) -> str:
    """A decoder with random weights: 4 layers, 4 heads over 2 KV heads.

    `further(hidden, dim)` are more weights of a layer; `scales` are of embedding and output (none: tied).
    """
    import torch
    from safetensors.torch import save_file

    dim = TINY_DIM
    hidden, heads, kv_heads, inner, layers = 4 * dim, 4, 2, 256, 4
    torch.manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape) * (shape[-1] ** -0.5)

    tied = len(scales) == 1
    weights = {"model.embed_tokens.weight": random(vocabulary, hidden) * scales[0],
               **({} if tied else {"lm_head.weight": random(vocabulary, hidden) * scales[1]}),
               "model.norm.weight": torch.ones(hidden)}
    for layer in range(layers):
        name = f"model.layers.{layer}."
        weights |= {
            name + "self_attn.q_proj.weight": random(heads * dim, hidden),
            name + "self_attn.k_proj.weight": random(kv_heads * dim, hidden),
            name + "self_attn.v_proj.weight": random(kv_heads * dim, hidden),
            name + "self_attn.o_proj.weight": random(hidden, heads * dim),
            name + "mlp.gate_proj.weight": random(inner, hidden),
            name + "mlp.up_proj.weight": random(inner, hidden),
            name + "mlp.down_proj.weight": random(hidden, inner),
            name + "input_layernorm.weight": torch.ones(hidden),
            name + "post_attention_layernorm.weight": torch.ones(hidden),
            **{name + key: value for key, value in further(hidden, dim).items()},
        }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim,
        "max_position_embeddings": 16384, "vocab_size": vocabulary, "tie_word_embeddings": tied,
        "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2, **config}))
    return str(folder)


def write_tiny_llama(folder: pathlib.Path, vocabulary: int, seed: int = 11, **config) -> str:
    return write_tiny(folder, vocabulary, seed, lambda hidden, dim: {}, (8, 4), **{
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, **config})


def write_tiny_mistral(folder: pathlib.Path, window: int) -> str:
    """Every layer has a window."""
    return write_tiny_llama(folder, 512, architectures=["MistralForCausalLM"], model_type="mistral",
                            sliding_window=window)


def write_tiny_gemma3(folder: pathlib.Path, window: int) -> str:
    """The third of four layers sees everything, and turns slower than the others."""
    import torch

    def norms(hidden, dim):
        return {"self_attn.q_norm.weight": torch.zeros(dim), "self_attn.k_norm.weight": torch.zeros(dim),
                "pre_feedforward_layernorm.weight": torch.zeros(hidden),
                "post_feedforward_layernorm.weight": torch.zeros(hidden)}

    kinds = ["full_attention" if layer == 2 else "sliding_attention" for layer in range(4)]
    return write_tiny(folder, 512, 12, norms, (4,), **{
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "layer_types": kinds,
        "query_pre_attn_scalar": TINY_DIM, "sliding_window": window,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0}}})


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), 512)


@pytest.fixture(scope="session")
def tiny_chat_model(tmp_path_factory, smollm2) -> str:
    """Random weights behind SmolLM2's tokenizer and template."""
    folder = tmp_path_factory.mktemp("tiny_chat")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(pathlib.Path(smollm2) / name, folder)
    return write_tiny_llama(folder, 49152)


@pytest.fixture(scope="session")
def smollm2() -> str:
    """SmolLM2-135M in float32, made from its GGUF once and kept in the cache."""
    cache = pathlib.Path(os.environ.get("INFERSCALE_CACHE_DIR",
                                        pathlib.Path.home() / ".cache/inferscale"))
    source = cache / "models/SmolLM2-135M-Instruct-Q4_1.gguf"
    script = ROOT / "tools/setup/dequantise_model.py"
    version = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    folder = cache / f"models/SmolLM2-135M-Instruct-f32-{version}"
    if not folder.exists():
        assert source.exists(), f"{source} is missing; run `make models`"
        subprocess.run([sys.executable, script, source, folder], check=True)
    return str(folder)
