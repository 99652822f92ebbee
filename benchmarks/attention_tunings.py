"""Our attention kernel with other constants, for `commlib bench attention --peer`: which ones are the fastest here.

commlib bench attention --batch 64 --length 4096 --peer benchmarks/attention_tunings.py
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch

from commlib.kernels.attention import Call
from commlib.kernels.attention_gpu import Tuning, launch, tuning_of

BLOCKS, WARPS, STAGES, SPANS = (32, 64, 128), (2, 4, 8), (2, 3, 4), (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)


def candidates(kernel: str, case: Any, inputs: Any) -> dict[str, Callable[[], object] | str]:
    """Return the kernel compiled for other steps, warps and stages, and with other numbers of spans."""
    if kernel != "attention":
        return {}
    if not torch.cuda.is_available():
        return {"tunings": "they are of the GPU's kernel"}
    shapes = [Tuning(*each) for each in product(BLOCKS, WARPS, STAGES)]
    changes = {f"block {each.block} w{each.warps} s{each.stages}": each._asdict() for each in shapes}
    changes |= {f"spans {spans}": {"spans": spans} for spans in SPANS}
    changes |= {"early": {"early": True}, "not early": {"early": False}}
    scales = (inputs.k_scale, inputs.v_scale) if inputs.scales else (None, None)
    tensors = (inputs.out, inputs.q, inputs.k_cache, inputs.v_cache, inputs.tables, inputs.lengths)
    call = Call(*tensors, None, None, case.dim**-0.5, scales)
    return {label: partial(launch, call, tuning_of(call)._replace(**of)) for label, of in changes.items()}
