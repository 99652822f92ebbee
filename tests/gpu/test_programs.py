"""Programs that nobody here wrote compute with backend "commlib" on two GPUs what they do with NCCL."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from commlib.tools.testing import Ranks
from tests.programs import groups, huggingface, parallel
from tests.programs.launched import both, launched, needs, same

OURS, BOTH = "commlib", ("commlib", "nccl")
PROGRAMS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    *((parallel.ddp, (options,)) for options in parallel.DDP_OPTIONS),
    *((parallel.fsdp, (dtype,)) for dtype in (None, torch.bfloat16)),
    (parallel.pipeline, ()),
]


@pytest.mark.parametrize(("program", "args"), PROGRAMS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_a_program_computes_what_it_does_with_nccl_bit_for_bit(
    nccl_ranks: Ranks, program: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    same(*both(nccl_ranks, 2, BOTH, program, *args))


def test_tensor_and_sequence_parallel_give_what_one_gpu_does(nccl_ranks: Ranks) -> None:
    for ours, expected in nccl_ranks.run(launched, parallel.tensor_parallel, OURS, world=2):
        same(ours, expected, 1e-5)


def test_a_checkpoint_of_two_gpus_is_loaded_by_two(nccl_ranks: Ranks, tmp_path: Path) -> None:
    saved = nccl_ranks.run(launched, parallel.save, OURS, str(tmp_path / "checkpoint"), world=2)
    loaded = nccl_ranks.run(launched, parallel.load, OURS, str(tmp_path / "checkpoint"), world=2)
    same(loaded, [[saved[0]] * 2] * 2, 1e-6)


@needs("transformers")
def test_a_llama_in_tensor_parallel_has_the_logits_of_one_gpu(nccl_ranks: Ranks, tmp_path: Path) -> None:
    logits, generated = nccl_ranks.run(huggingface.llama_of_one, str(tmp_path), world=2)[0]
    for ours in nccl_ranks.run(launched, huggingface.llama, OURS, str(tmp_path), world=2):
        same(ours[0], logits, 1e-5)
        assert ours[1] == generated


@needs("accelerate")
def test_accelerate_trains_bit_for_bit_as_with_nccl(nccl_ranks: Ranks) -> None:
    same(*both(nccl_ranks, 2, BOTH, huggingface.accelerate))


def test_groups_that_were_destroyed_leave_nothing_behind(nccl_ranks: Ranks) -> None:
    for growth in nccl_ranks.run(launched, groups.grown, OURS, 20, 10, world=2):
        assert growth["fd"] <= 0 and growth["task"] <= 0
