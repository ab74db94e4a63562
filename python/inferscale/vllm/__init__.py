"""The vLLM connector: `"kv_connector_module_path": "inferscale.vllm"`."""

from inferscale.vllm.connector import InferScaleConnector

__all__ = ["InferScaleConnector"]
