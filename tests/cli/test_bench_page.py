"""The pages of `commlib bench`: what stands beside ours, who is the fastest, and that wrong values win nothing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from commlib.bench import which
from commlib.bench.page import kept
from commlib.bench.rows import KIND, averages, compared, measured
from commlib.cli.bench.notes import closing
from commlib.cli.bench.show import show
from commlib.cli.bench.view import BenchView
from commlib.collectives import COLLECTIVES
from tests.cli.bench_documents import config, document, saved, times

Bench = Callable[..., subprocess.CompletedProcess[str]]
QUICK = ("--algorithms", "auto", "--time", "0.1", "--iters", "1", "--in-place", "out")


def page(found: dict[str, Any]) -> str:
    return BenchView(found, 80).render("page")


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


def test_the_page_of_all_collectives_is_one_screen_of_80_columns() -> None:
    lines = [*page(document(*COLLECTIVES)).splitlines(), *kept(None, None, 80)]
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 45
    for op in COLLECTIVES:
        assert any(line.startswith(f"{op} ") for line in lines)


def test_a_line_has_the_plans_time_and_the_ratio_to_the_fastest_other_library_at_four_sizes() -> None:
    text = page(document())
    assert re.search(r"^ +8 B +4 KiB +256 KiB +16 MiB$", text, re.MULTILINE)
    (line,) = (line for line in text.splitlines() if line.startswith("all_reduce "))
    assert re.fullmatch(r"all_reduce +0\.81 1\.36x +2\.35 1\.44x +73\.38 2\.00x +4577\.5 2\.04x", line)
    assert "others: torch, mpich; faster than ours: none of them" in text
    assert "values: 0 wrong elements" in text


def test_an_other_library_whose_blocks_disagree_has_no_ratio() -> None:
    text = page(beside(document(), {**times(0.5), "p90": 0.7}))
    (line,) = (line for line in text.splitlines() if line.startswith("all_reduce "))
    assert re.match(r"all_reduce +0\.81 noisy ", line)
    assert "noisy: the best other's blocks differ by more than 30%, too much for a ratio" in text
    assert "faster than ours: all_reduce 16 MiB (mpich, noisy), all_reduce 2 MiB" in " ".join(text.split())


def test_the_page_says_whether_its_plan_was_measured_here_and_its_values_are_right() -> None:
    plan = {"digest": "0123456789ab", "source": "shm.json"}
    assert "(0123456789ab), measured on this machine" in page(document(plan={**plan, "match": "here"}))
    assert "not measured on this machine → commlib tune" in page(document(plan={**plan, "match": "shipped"}))
    assert "values: 3 wrong elements" in page(document(out_of_bounds={"count": 3, "okay": False}))
    assert "values: not compared" in page(document(config={**config((8,), None), "check": False}))
    assert page(document(complete=False, ended="interrupted")).endswith("interrupted: not complete")


@pytest.mark.slow
def test_mpi_and_torch_stand_beside_ours_on_the_cpu_unasked(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    result = bench("-n", "2", "--sizes", "8,4K", "-o", str(path), *QUICK)
    assert (result.returncode, result.stderr) == (0, "")
    found = KIND.read(path)
    assert result.stdout.startswith(page(found) + "\n")
    mpi = ["mpi"] if importlib.util.find_spec("mpi4py") else []
    assert found["config"]["peers"] == [*mpi, "torch"]
    assert found["config"]["baseline"] == [*mpi, "torch"][0]
    assert {row["wrong"] for row in found["rows"] if "skipped" not in row} == {0}


def test_no_average_is_over_different_collectives_and_no_fit_with_a_large_error_is_printed() -> None:
    found = document("all_reduce", "broadcast")
    assert averages(found["rows"]) == {"plan": None, "peers": {}}
    assert set(averages(document()["rows"])["peers"]) == {"torch", "mpich"}
    text = "\n".join(closing(found))
    for fit in found["fits"]:
        fit["error"] = 0.31
    assert "fit out of place" in text
    assert "fit out of place" not in "\n".join(closing(found))


Tiles = list[tuple[str, str, str]]  # size, who is the fastest, ratio


def tiles(found: dict[str, Any]) -> list[Tiles]:
    """Return the tiles of each strip, as they are described to who cannot see them."""
    said = re.findall(r"<desc[^>]*>(.*?)</desc>", which.page(found))
    return [[re.fullmatch(r"(.*?): (.*) (\S+)", tile).groups() for tile in strip.split("; ")] for strip in said]


def made(*sizes: int, mpich: float | dict[str, float] = 2.0, **changes: Any) -> dict[str, Any]:
    """Return a document in which commlib's choice takes 1 µs at every size, torch 50, and mpich so long."""
    found = document("all_reduce", sizes=sizes or (8, 64), **changes)
    of = {"mpich": mpich, "torch": 50.0}
    for row in found["rows"]:
        if "skipped" not in row:
            time = of.get(row["algorithm"], 1.0)
            row["time_us"] = times(time) if isinstance(time, float) else time
    return found


def test_the_fastest_is_who_is_apart_from_the_other_by_enough_else_they_are_level() -> None:
    for mpich, fastest, ratio in [
        (2.0, "commlib", "2.00"),
        (0.5, "mpich", "0.50"),
        (1.02, "level", "1.02"),
        # 5 % and more apart, but the blocks of the two overlap.
        ({**times(1.1), "p10": 1.02}, "unclear", "1.10"),
        # Apart though its blocks do not agree with each other.
        ({**times(9.0), "p90": 20.0}, "commlib", "~9.00"),
    ]:
        assert tiles(made(8, 64, mpich=mpich)) == [[("8", fastest, ratio), ("64", fastest, ratio)]]
    assert "commlib is the fastest in 2; " in which.page(made(8, 64))
    found = made(8)
    found["rows"] = [row for row in found["rows"] if row["ours"]]
    assert tiles(found) == [[("8", "no other here", "-")]]
    assert "Nothing can be compared" in which.page(found)


def test_values_that_are_wrong_are_said_and_win_nothing() -> None:
    found = made(8, mpich=0.5)
    found["out_of_bounds"] = {"count": 7, "okay": False}
    for row in found["rows"]:
        if row["algorithm"] == "mpich" and "skipped" not in row:
            row["wrong"] = 7
    assert tiles(found) == [[("8", "commlib", "50.0")]]
    assert "7 wrong elements in this run." in which.page(found)


def test_names_of_libraries_are_text_wherever_they_come() -> None:
    found = made(8, mpich=0.5)
    evil = "<script>alert(1)</script>"
    for row in found["rows"]:
        if row["algorithm"] == "mpich":
            row |= {"algorithm": evil, "library": evil}
    found["notes"] = [f"skipped: peer {evil}"]
    text = which.page(found)
    assert evil not in text and text.count("&lt;script&gt;alert(1)") >= 4
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text)


@pytest.mark.slow
def test_show_writes_the_form_that_the_name_of_the_file_says(tmp_path: Path) -> None:
    file = saved(tmp_path, made())
    for name, first in (("x.html", "<!doctype html>"), ("x.csv", "op,"), ("x.osu", "# commlib")):
        result = CliRunner().invoke(show, [str(file), "-o", str(tmp_path / name)])
        assert (result.exit_code, result.output) == (0, "")
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(first)
