"""InferScale: the stored attention KV of facts, injected into vLLM. See `inferscale.vllm`."""

__version__ = "0.1.0"
