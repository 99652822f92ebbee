"""The page of `commlib bench`, what stands beside ours and when it is compared, percentiles, progress."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commlib.bench.page import kept
from commlib.bench.rows import KIND, averages, compared, measured, spread
from commlib.cli.bench.notes import closing
from commlib.cli.bench.view import BenchView
from commlib.collectives import COLLECTIVES
from commlib.report import progress
from tests.cli.bench_documents import config, document, times

Bench = Callable[..., subprocess.CompletedProcess[str]]
QUICK = ("--algorithms", "auto", "--time", "0.1", "--iters", "1", "--in-place", "out")


def page(found: dict[str, Any], width: int = 80) -> str:
    return BenchView(found, width).render("page")


def test_of_ours_and_of_an_other_library_the_faster_form_is_compared() -> None:
    found = document("all_gather", sizes=(8,))
    in_place = {"shm_oneshot": 1.0, "torch": 1.5}
    for row in measured(found["rows"]):
        row["time_us"] = times(in_place.get(row["algorithm"], 9.0) if row["in_place"] else 4.0)
    ours, best = compared(measured(found["rows"]))
    assert ours and best
    assert (ours["in_place"], ours["time_us"]["p50"]) == (True, 1.0)
    assert (best["algorithm"], best["in_place"], best["time_us"]["p50"]) == ("torch", True, 1.5)


def beside(found: dict[str, Any], of_peer: dict[str, float]) -> dict[str, Any]:
    """Return the document with these times of the fastest other library."""
    for row in found["rows"]:
        if row["algorithm"] == "mpich" and "skipped" not in row:
            row["time_us"] = of_peer
    return found


@pytest.mark.parametrize("width", [40, 60, 79, 80, 120, 200])
def test_the_page_of_all_collectives_is_one_screen_that_fits_the_terminal(width: int) -> None:
    lines = [*page(document(*COLLECTIVES), width).splitlines(), *kept(None, None, width)]
    assert max(map(len, lines)) <= width
    for op in COLLECTIVES:
        assert any(line.startswith(f"{op} ") for line in lines)
    if width >= 80:
        assert len(lines) <= 45


def test_a_line_has_the_plans_time_and_the_ratio_to_the_fastest_other_library_at_four_sizes() -> None:
    text = page(document())
    assert re.search(r"^ +8 B +4 KiB +256 KiB +16 MiB$", text, re.MULTILINE)
    (line,) = (line for line in text.splitlines() if line.startswith("all_reduce "))
    assert re.fullmatch(r"all_reduce +0\.81 1\.36x +2\.35 1\.44x +73\.38 2\.00x +4577\.5 2\.04x", line)
    assert "others: torch, mpich; faster than ours: none of them" in text
    assert "values: 0 wrong elements" in text


def test_a_size_that_was_not_measured_has_no_time_of_another_size() -> None:
    found = document()
    found["rows"] = [row for row in found["rows"] if row["size"] <= 4096]
    (line,) = (line for line in page(found).splitlines() if line.startswith("all_reduce "))
    assert re.fullmatch(r"all_reduce +0\.81 1\.36x +2\.35 1\.44x +- +-", line)


def test_an_other_library_whose_blocks_disagree_has_no_ratio() -> None:
    text = page(beside(document(), {**times(0.5), "p90": 0.7}))
    (line,) = (line for line in text.splitlines() if line.startswith("all_reduce "))
    assert re.match(r"all_reduce +0\.81 noisy ", line)
    assert "noisy: the best other's blocks differ by more than 30%, too much for a ratio" in text
    assert "faster than ours: all_reduce 16 MiB (mpich, noisy), all_reduce 2 MiB" in " ".join(text.split())


def test_where_an_other_library_is_faster_is_said() -> None:
    text = " ".join(page(beside(document(), times(0.5))).split())
    assert re.search(r"faster than ours: all_reduce 16 MiB \(mpich, [\d.k]+x\), all_reduce 2 MiB \(mpich", text)
    assert "and 2 more" in text


@pytest.mark.parametrize(
    ("match", "said"),
    [
        ("here", "plan shm.json (0123456789ab), measured on this machine"),
        ("shipped", "not measured on this machine → commlib tune -n 2"),
        ("torch 2.11, here 2.13", "measured with torch 2.11, here 2.13\nnot measured on this machine"),
    ],
)
def test_the_page_says_whether_the_plan_was_measured_here(match: str, said: str) -> None:
    found = document(plan={"digest": "0123456789ab", "source": "shm.json", "match": match})
    assert said in page(found)


def test_values_that_are_wrong_or_not_compared_are_said() -> None:
    assert "values: 3 wrong elements" in page(document(out_of_bounds={"count": 3, "okay": False}))
    assert "values: not compared" in page(document(config={**config((8,), None), "check": False}))
    assert page(document(complete=False, ended="interrupted")).endswith("interrupted: not complete")


@pytest.fixture(scope="module")
def run(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    path = tmp_path_factory.mktemp("page") / "bench.json"
    result = bench("-n", "2", "--sizes", "8,4K", "-o", str(path), *QUICK)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout, KIND.read(path), path


def test_a_run_of_all_collectives_ends_with_the_page_and_names_its_file(
    run: tuple[str, dict[str, Any], Path],
) -> None:
    printed, found, path = run
    assert printed.startswith(page(found) + "\n")
    assert printed.endswith(f"results: {path}\nevery row: commlib bench show {path}\n")


def test_mpi_and_torch_stand_beside_ours_on_the_cpu_unasked(run: tuple[str, dict[str, Any], Path]) -> None:
    mpi = ["mpi"] if importlib.util.find_spec("mpi4py") else []
    assert run[1]["config"]["peers"] == [*mpi, "torch"]
    assert run[1]["config"]["baseline"] == [*mpi, "torch"][0]
    assert {row["library"] for row in run[1]["rows"] if row["algorithm"] == "mpi"} == ({"MPICH"} if mpi else set())
    assert {row["wrong"] for row in run[1]["rows"] if "skipped" not in row} == {0}


def test_speed_ups_are_over_calls_whose_blocks_agree_alone(run: tuple[str, dict[str, Any], Path]) -> None:
    found = run[1]
    by_call = {
        (row["op"], row["size"]): row for row in found["rows"] if row["algorithm"] == found["config"]["baseline"]
    }
    for row in found["rows"]:
        if "skipped" not in row and row["speedup"] is not None:
            assert spread(by_call[row["op"], row["size"]]["time_us"]) <= found["config"]["agree"]


def test_the_table_marks_an_other_library_whose_blocks_disagree() -> None:
    found = beside(document(config={**config((8,), "torch"), "agree": 0.3}), {**times(0.5), "p90": 0.7})
    text = BenchView(found, 80).render("table")
    assert "mpich~" in text
    assert "torch~" not in text
    assert "none where its blocks differ by more than 30% (~)" in " ".join(text.replace("#", "").split())


def test_percentiles_are_a_flag_away(bench: Bench) -> None:
    result = bench("barrier", "--peers", "none", "--percentiles", "--time", "0.1", width=200)
    assert re.search(r"time +min +p99 +busbw", result.stdout)
    (line,) = (line.split() for line in result.stdout.splitlines() if line.split()[1:3] == ["shm_oneshot*", "out"])
    assert float(line[4]) <= float(line[3]) <= float(line[5])


def test_no_average_is_over_different_collectives_and_no_fit_with_a_large_error_is_printed() -> None:
    found = document("all_reduce", "broadcast")
    assert averages(found["rows"]) == {"plan": None, "peers": {}}
    assert set(averages(document()["rows"])["peers"]) == {"torch", "mpich"}
    text = "\n".join(closing(found))
    assert "Avg bus bandwidth" not in text
    assert text.count("# avg busbw: ") == 2
    for fit in found["fits"]:
        fit["error"] = 0.31
    assert "fit out of place" in text
    assert "fit out of place" not in "\n".join(closing(found))


@pytest.mark.parametrize(("done", "width"), [(0, 80), (5, 80), (12, 80), (5, 40), (5, 12)])
def test_the_progress_line_fits_the_terminal(done: int, width: int) -> None:
    text = progress.line(done, 12, "reduce_scatterv of 67108864 B", 61.0, width)
    assert len(text) < width
    assert text.startswith(f"{done}/12") or f"] {done}/12 1:01" in text
    if done == 5 and width == 80:
        assert "1:25 left" in text
