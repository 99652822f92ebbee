"""Programs that nobody here wrote run with backend "commlib" as they do with gloo."""

from pathlib import Path

import pytest
import torch

from commlib.tools.testing import Ranks
from tests.programs import groups, huggingface, parallel
from tests.programs.launched import both, launched, needs, same

pytestmark = pytest.mark.slow

OURS, BOTH = "commlib", ("commlib", "gloo")


@pytest.mark.parametrize("options", parallel.DDP_OPTIONS, ids=str)
def test_ddp_trains_bit_for_bit_as_with_gloo(program_ranks: Ranks, options: dict[str, bool]) -> None:
    same(*both(program_ranks, 2, BOTH, parallel.ddp, options))


def test_a_model_in_ddp_may_outlive_its_group(program_ranks: Ranks) -> None:
    program_ranks.run(launched, parallel.outlives, OURS, world=2)


@pytest.mark.parametrize(
    ("world", "dtype", "tolerance"), [(2, None, 0.0), (2, torch.bfloat16, 0.0), (4, None, 1e-6)], ids=str
)
def test_fsdp_has_the_losses_of_gloo(program_ranks, world, dtype, tolerance) -> None:
    ours, theirs = both(program_ranks, world, BOTH, parallel.fsdp, dtype)
    same(ours, theirs, tolerance)
    assert world > 2 or all(losses[-1] < losses[0] / 2 for losses in ours)


@pytest.mark.parametrize(("world", "data_ranks"), [(2, 1), (4, 1), (4, 2)])
def test_tensor_and_sequence_parallel_give_what_one_rank_does(program_ranks, world, data_ranks) -> None:
    for ours, expected in program_ranks.run(launched, parallel.tensor_parallel, OURS, data_ranks, world=world):
        same(ours, expected, 1e-5)


def test_a_pipeline_of_two_stages_gives_what_one_rank_does(program_ranks: Ranks) -> None:
    ours, theirs = both(program_ranks, 2, BOTH, parallel.pipeline)
    for of_rank in ours:
        same(*of_rank, 1e-6)
    same(ours, theirs)


def test_a_checkpoint_of_two_ranks_is_loaded_by_four(program_ranks: Ranks, tmp_path: Path) -> None:
    saved = program_ranks.run(launched, parallel.save, OURS, str(tmp_path / "checkpoint"), world=2)
    loaded = program_ranks.run(launched, parallel.load, OURS, str(tmp_path / "checkpoint"))
    same(loaded, [[saved[0]] * 2] * 4, 1e-6)


@needs("transformers")
@pytest.mark.parametrize("world", [2, 4])
def test_a_llama_in_tensor_parallel_has_the_logits_of_one_process(program_ranks, tmp_path, world) -> None:
    ((logits, generated),) = program_ranks.run(huggingface.llama_of_one, str(tmp_path), world=1)
    for ours in program_ranks.run(launched, huggingface.llama, OURS, str(tmp_path), world=world):
        same(ours[0], logits, 1e-5)
        assert ours[1] == generated
        assert ours[2] > 0, "no weight was divided"


@needs("transformers")
def test_every_all_reduce_of_a_compiled_llama_is_fused_with_its_norm(program_ranks: Ranks, tmp_path: Path) -> None:
    ((logits, _),) = program_ranks.run(huggingface.llama_of_one, str(tmp_path), world=1)
    for ours, count, calls in program_ranks.run(launched, huggingface.fused_llama, OURS, str(tmp_path), world=2):
        same(ours, logits, 1e-5)
        assert (count, calls) == (5, 5), "the embedding's, and two in each of two layers"


@needs("accelerate")
def test_accelerate_trains_bit_for_bit_as_with_gloo(program_ranks: Ranks) -> None:
    ours, theirs = both(program_ranks, 2, BOTH, huggingface.accelerate)
    same(ours, theirs)
    assert ours[0][0] == ours[1][0], "losses are gathered on every rank"


def test_groups_that_were_destroyed_leave_nothing_behind(program_ranks: Ranks) -> None:
    for growth in program_ranks.run(launched, groups.grown, OURS, 100, 20, world=2):
        assert growth["fd"] <= 0 and growth["task"] <= 0
        assert growth["maps"] <= 10, "the allocator may take a few; a hundred groups that leave one each are more"
        assert growth["kib"] <= 4096
