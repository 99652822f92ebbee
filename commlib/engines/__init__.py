"""vLLM, SGLang and mini-sglang on commlib: their names, our calls; only where COMMLIB_ENGINES names the engine."""
