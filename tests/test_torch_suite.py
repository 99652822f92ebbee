"""PyTorch's own tests: a part of what `make test-torch` runs, and how it tells of tests that go wrong."""

import pytest

from tests.torch_suite import run as suite_run
from tests.torch_suite.run import Job, run

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path):
    return lambda suite, **options: Job(
        suite, "commlib", 2, "cpu", **{"deadline_s": 60, "log": tmp_path / "log", **options}
    )


def wrong(outcomes):
    return {test: outcome.reason for test, outcome in outcomes.items() if outcome.outcome != "passed"}


PARTS = {
    "distributed": """
        all_gather_coalesced_simple all_gather_object_default_pg all_reduce_coalesced_sum all_reduce_sum_complex
        all_to_all barrier_timeout_global broadcast ddp_logging_data_cpu gather_checks get_backend get_future isend
        reduce_max scatter_object_list send_recv_any_source static_graph_api_cpu
    """,
    "threads": "collectives_between_threads tensors_are_sharded_between_threads",
}


@pytest.mark.parametrize("suite", PARTS)
def test_a_part_of_pytorch_s_tests_passes(job, suite):
    names = [f"test_{name}" for name in PARTS[suite].split()]
    outcomes = run(job(suite), [f"{suite.title()}::{name}" for name in names])
    assert not wrong(outcomes)
    assert sorted(outcomes) == names


def test_a_test_that_goes_wrong_is_named_with_its_reason_and_the_others_run(job, monkeypatch):
    monkeypatch.setattr(suite_run, "PATIENCE_S", 2)
    expected = {
        "test_alone_1_hangs": "crashed while running",
        "test_alone_2_dies": "crashed while running",
        "test_forked_1_fails_on_one_rank": "AssertionError: Scalars are not equal!",
        "test_forked_2_dies_on_one_rank": "AssertionError: the ranks' exit codes are [0, 3]",
        "test_forked_3_hangs_on_one_rank": "RuntimeError: Process 1 terminated or timed out after",
        "test_forked_4_is_skipped_on_its_ranks": "for a reason of its own",
    }
    outcomes = run(job("faulty", folder="tests/torch_suite", deadline_s=5))
    reasons = wrong(outcomes)
    assert outcomes.keys() - reasons.keys() == {"test_forked_5_passes"}
    assert [(test, reasons[test]) for test, said in expected.items() if said not in reasons[test]] == []
    assert outcomes["test_forked_4_is_skipped_on_its_ranks"].outcome == "skipped"


def test_a_suite_that_cannot_start_is_a_failure(job):
    assert wrong(run(job("no_such_suite")))["the suite"].startswith("was not started; see ")
