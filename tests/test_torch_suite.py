"""PyTorch's own tests: a part of what `make test-torch` runs, and how it tells of tests that go wrong."""

import pytest

from tests.torch_suite import run as suite_run
from tests.torch_suite.run import Job, Outcome, run
from tests.torch_suite.table import document, table

pytestmark = pytest.mark.slow

BACKEND = "commlib"


@pytest.fixture
def job(tmp_path):
    return lambda suite, **options: Job(
        suite, BACKEND, 2, "cpu", **{"deadline_s": 60, "log": tmp_path / "log", **options}
    )


def wrong(outcomes):
    return {test: outcome.reason for test, outcome in outcomes.items() if outcome.outcome != "passed"}


PARTS = {
    "distributed": """
        all_gather_coalesced_simple all_gather_object_default_pg all_reduce_coalesced_sum all_reduce_sum_complex
        all_to_all barrier_timeout_global broadcast ddp_logging_data_cpu gather_checks get_backend get_future isend
        reduce_max scatter_object_list send_recv_any_source static_graph_api_cpu
    """,
    "threads": "",
}


@pytest.mark.parametrize("suite", PARTS)
def test_a_part_of_pytorch_s_tests_passes(job, suite):
    names = PARTS[suite].split()
    outcomes = run(job(suite, match=f"^test_({'|'.join(names)})$" if names else ""))
    assert not wrong(outcomes)
    assert len(outcomes) == len(names) or (outcomes and not names)


@pytest.mark.parametrize(
    ("suite", "expected"),
    [
        (
            "faulty",
            {
                "test_forked_1_fails_on_one_rank": "AssertionError: Scalars are not equal!",
                "test_forked_2_dies_on_one_rank": "AssertionError: the ranks' exit codes are [0, 3]",
                "test_forked_3_hangs_on_one_rank": "RuntimeError: Process 1 terminated or timed out after",
                "test_forked_4_is_skipped_on_its_ranks": "for a reason of its own",
                "test_forked_5_passes": "",
            },
        ),
        (
            "faulty_alone",
            {
                "test_alone_1_hangs": "did not return in 5 s",
                "test_alone_2_dies": "its process died",
                "test_alone_3_passes": "",
                "setUpClass (tests.torch_suite.faulty_alone.Unset)": "OSError: no such thing",
                "test_unset_is_not_started": "was not started",
            },
        ),
    ],
)
def test_a_test_that_goes_wrong_is_named_with_its_reason_and_the_others_run(job, monkeypatch, suite, expected):
    monkeypatch.setattr(suite_run, "PATIENCE_S", 2)
    outcomes = run(job(suite, module="tests.torch_suite", deadline_s=5))
    reasons = {test: outcome.reason[: len(expected.get(test, ""))] for test, outcome in outcomes.items()}
    assert reasons == expected
    passed = {test for test, outcome in outcomes.items() if outcome.outcome == "passed"}
    assert passed == {test for test, reason in expected.items() if not reason}
    assert outcomes.get("test_forked_4_is_skipped_on_its_ranks", Outcome("skipped")).outcome == "skipped"


def test_a_suite_that_cannot_start_is_a_failure(job):
    assert wrong(run(job("no_such_suite")))["the suite"].startswith("was not started; see ")


def test_the_table_counts_each_backend_and_says_why():
    passed, skipped, failed = Outcome("passed"), Outcome("skipped", "no GPU"), Outcome("failed", "Error: lost")
    results = {
        ("dtensor", "ours"): {"a": passed, "b": passed, "c": skipped},
        ("dtensor", "gloo"): {"a": passed, "b": failed, "c": skipped},
    }
    lines = [" ".join(line.split()) for line in table(results)]
    assert "dtensor 3 2 2 0 1 2 1 1 1" in lines
    assert lines.count("1 no GPU") == 2
    assert "dtensor: b: Error: lost" in lines
    ours, gloo = document(results, ranks=2)["results"]
    assert (ours["executed"], ours["passed"], ours["skips"]) == (2, 2, {"no GPU": ["c"]})
    assert gloo["failures"] == {"b": "Error: lost"}
