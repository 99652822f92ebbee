"""vLLM: its CPU communicator and its custom all-reduce on commlib; `vllm.general_plugins` calls register()."""

from __future__ import annotations

import logging
from typing import Any

from commlib import env

_LOG = logging.getLogger("commlib")
TESTED = ("0.32", "0.33")
FLASHINFER = "VLLM_ALLREDUCE_USE_FLASHINFER"  # it comes before the custom all-reduce where it is not 0


def register() -> None:
    """Make the worker processes of this vLLM call commlib; vLLM calls this once in each of its processes."""
    import vllm
    from vllm.platforms import current_platform

    if not vllm.__version__.startswith(TESTED):
        _LOG.warning("vLLM %s was not tested with commlib, only %s", vllm.__version__, ", ".join(TESTED))
    if current_platform.is_cpu():
        target = "commlib.engines.vllm_communicators.CpuCommunicator"
        type(current_platform).get_device_communicator_cls = classmethod(lambda cls: target)
    elif current_platform.is_cuda():
        _replace_custom_all_reduce()
    else:
        _LOG.warning("vLLM on %s stays on its own path: commlib serves CPUs and NVIDIA GPUs", current_platform)


def _replace_custom_all_reduce() -> None:
    """Put our class where CudaCommunicator imports its own from, and our norm where it looks for FlashInfer's."""
    from vllm import envs
    from vllm.distributed.device_communicators import custom_all_reduce

    from commlib.engines.custom_all_reduce import CustomAllReduce

    original = custom_all_reduce.CustomAllreduce

    class Choice(custom_all_reduce.CustomAllreduce):  # vLLM's own reads attributes of what stands under its name
        def __new__(cls, group: Any, device: Any, *limits: Any, **options: Any) -> Any:
            """Return our calls of a group, or where we cannot serve it, vLLM's own."""
            calls = CustomAllReduce(group, device, name="vLLM")
            return original(group, device, *limits, **options) if calls.disabled else calls

    custom_all_reduce.CustomAllreduce = Choice
    asked = env.foreign(FLASHINFER)
    if not asked:
        envs.environment_variables[FLASHINFER] = lambda: False
    elif asked != "0":
        _LOG.warning("%s=%s: FlashInfer takes all-reduces before commlib sees them", FLASHINFER, asked)
    try:
        from vllm.compilation.passes import pass_manager
        from vllm.config import vllm as config

        from commlib.engines import vllm_fusion

        def fuses(made: Any) -> bool:
            return made.parallel_config.tensor_parallel_size > 1 and not envs.VLLM_BATCH_INVARIANT

        for level in config.OPTIMIZATION_LEVEL_TO_CONFIG.values():
            passes = level["compilation_config"]["pass_config"]
            if passes["fuse_allreduce_rms"] is config.enable_allreduce_rms_fusion:  # where FlashInfer is installed
                passes["fuse_allreduce_rms"] = fuses
        _ = pass_manager.AllReduceFusionPass
        pass_manager.AllReduceFusionPass = vllm_fusion.AllReduceNormPass
    except (ImportError, AttributeError, KeyError) as error:
        _LOG.warning("vLLM: norms after an all_reduce are not fused: %s", error)
