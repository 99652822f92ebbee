"""Two bench runs side by side: what counts as slower, what is said of the rest, and the exit codes."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from commlib.tools.cli.bench.compare import compare
from tests.cli.bench_documents import SIZES, document, saved, times


def compared(folder: Path, after: dict[str, Any], *words: str, before: dict[str, Any] | None = None) -> Result:
    paths = saved(folder, before or document(), "a.json"), saved(folder, after, "b.json")
    return CliRunner().invoke(compare, [*map(str, paths), *words], env={"COLUMNS": "200"})


def slowed(factor: float, *, spread: float = 1.0, algorithm: str = "shm_twoshot", size: int = 4096) -> dict[str, Any]:
    """Return a document in which one algorithm at one size takes longer, with more spread between blocks."""
    found = document()
    for row in found["rows"]:
        if (row["algorithm"], row["size"], row["in_place"]) == (algorithm, size, False):
            row["time_us"] = times(row["time_us"]["p50"] * factor)
            row["time_us"]["p10"] /= spread
            row["time_us"]["p90"] *= spread
    return found


def drifted(found: dict[str, Any], factor: float, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Make the peers' rows at these sizes take longer; every second one shorter by as much."""
    turn = 1.0
    for row in found["rows"]:
        if not row["ours"] and row["size"] in sizes and "time_us" in row:
            row["time_us"] = times(row["time_us"]["p50"] * factor**turn)
            turn = -turn
    return found


def alone(found: dict[str, Any]) -> dict[str, Any]:
    """Leave the peers out."""
    return {**found, "rows": [row for row in found["rows"] if row["ours"]]}


def test_slower_by_more_than_the_threshold_and_the_spread_is_a_regression(tmp_path: Path) -> None:
    result = compared(tmp_path, document())
    assert result.exit_code == 0
    assert "ours: 64 in both, B/A 1.000: 0 worse, 0 better, 64 same" in result.output
    assert "others: 24 in both, B/A 1.000: 0 worse, 0 better, 24 same" in result.output
    assert "warning" not in result.output
    for after, words, code, said in [
        (slowed(1.2), (), 1, "1 worse, 0 better"),
        (slowed(1.2), ("--threshold", "25"), 0, "0 worse, 0 better"),
        (slowed(1.2, spread=1.3), (), 0, "0 worse, 0 better, 64 same"),
        (slowed(0.7), (), 0, "0 worse, 1 better"),
        (slowed(2.0, algorithm="torch"), (), 0, "1 worse"),  # said, but no failure of ours
        (slowed(1.08), ("--threshold", "10"), 0, "# rows by a threshold of 10 %"),
    ]:
        result = compared(tmp_path, after, *words)
        assert (result.exit_code, said in result.output) == (code, True), result.output


def test_calls_are_not_judged_where_the_peers_drifted(tmp_path: Path) -> None:
    for after, code, said in [
        # The peers of this call moved, or those of the whole series: up or down, the machine is another.
        (drifted(slowed(1.2), 1.1, (4096,)), 0, "B/A 1.003: 0 worse, 0 better, 56 same, 8 not judged"),
        (drifted(slowed(1.2), 1.1), 0, "0 worse, 0 better, 0 same, 64 not judged"),
        # Another call's peers moved: this one is judged.
        (drifted(slowed(1.2), 1.1, (64,)), 1, "1 worse, 0 better, 55 same, 8 not judged"),
        (drifted(slowed(1.2), 1.04), 1, "1 worse, 0 better, 63 same"),  # less than the threshold is no drift
    ]:
        result = compared(tmp_path, after)
        assert (result.exit_code, said in result.output) == (code, True), result.output
        assert ("the machine changed between A and B" in result.output) == ("not judged" in said)


def test_peers_whose_blocks_do_not_agree_show_no_drift_beside_others_that_do(tmp_path: Path) -> None:
    before, after = document(), drifted(slowed(1.2), 1.5)
    for row in [*before["rows"], *after["rows"]]:
        if row["algorithm"] == "torch":
            row["time_us"]["p90"] *= 2
    steady = {id(row) for row in after["rows"] if row["algorithm"] == "mpich"}
    after["rows"] = [
        {**row, "time_us": old["time_us"]} if id(row) in steady and "time_us" in old else row
        for row, old in zip(after["rows"], before["rows"], strict=True)
    ]
    result = compared(tmp_path, after, before=before)
    assert (result.exit_code, "not judged" in result.output) == (1, False)


def test_without_peers_a_warning_says_that_drift_cannot_be_seen(tmp_path: Path) -> None:
    for factor, code in [(1.2, 1), (1.02, 0), (0.7, 0)]:
        result = compared(tmp_path, alone(slowed(factor)), before=alone(document()))
        said = "warning: no row of another library is in both"
        assert (result.exit_code, said in result.output) == (code, True)


def test_what_makes_times_incomparable_is_said_in_a_line_each(tmp_path: Path) -> None:
    after = document(complete=False, ended="interrupted", plan={"digest": "ba9876543210", "source": "mine.json"})
    after["fingerprint"] |= {"cpu": "Another CPU", "torch": "2.14.0"}
    after["config"]["ranks"] = 4
    lines = compared(tmp_path, after).output.splitlines()
    for warning in (
        "machines differ: cpu A CPU / Another CPU, torch 2.13.0 / 2.14.0",
        "runs differ: ranks 2 / 4",
        "plans differ: 0123456789ab from shm.json / ba9876543210 from mine.json",
        "B is not complete: interrupted",
    ):
        assert f"# warning: {warning}" in lines


def test_every_setting_that_makes_another_run_is_named(tmp_path: Path) -> None:
    shape = {"ranks": 4, "backend": "nccl", "mode": "graph", "cores_per_rank": 2}
    for key, value in {**shape, "check": False}.items():
        after = document()
        after["config"][key] = value
        assert f"# warning: runs differ: {key} " in compared(tmp_path, after).output, key


def test_files_without_a_common_row_are_a_callers_mistake(tmp_path: Path) -> None:
    result = compared(tmp_path, document("broadcast"))
    assert isinstance(result.exception, ValueError)
    assert "a.json (88 rows of all_reduce) and b.json (88 rows of broadcast) share no row" in str(result.exception)


def test_wrong_values_are_a_regression_at_any_speed_on_any_machine(tmp_path: Path) -> None:
    after = drifted(slowed(0.5), 2.0)
    next(row for row in after["rows"] if row["size"] == 512)["wrong"] = 7
    result = compared(tmp_path, after)
    assert (result.exit_code, "7 wrong" in result.output, "1 wrong" in result.output) == (1, True, True)


def test_json_and_markdown_say_the_same(tmp_path: Path) -> None:
    found = json.loads(compared(tmp_path, slowed(1.5), "--format", "json").output)
    (row,) = found["rows"]
    assert (row["algorithm"], row["size"], row["verdict"], row["ratio"]) == ("shm_twoshot", 4096, "worse", 1.5)
    assert (found["regressions"], found["summary"]["ours"]["verdicts"]["worse"]) == (1, 1)
    text = compared(tmp_path, slowed(1.5), "--format", "md").output
    assert "| 4K | shm_twoshot | out | 3.34 | 5.01 | 1.50 | 1.00 | worse |" in text
