"""A two-layer Llama of random weights in a folder, and the environment of vLLM."""

import json
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
PROMPTS = [[5, 7, 11, 13], [2, 3], list(range(100, 140))]


def write_model(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG))


def variables(ranks: int, engines: str) -> dict[str, str]:
    """Return the environment of vLLM on as many cores as ranks."""
    return {
        "COMMLIB_ENGINES": engines,
        "COMMLIB_LOG": "info",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(["0", "1"][:ranks]),
    }
