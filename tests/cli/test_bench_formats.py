"""Renderings of a bench document: the schema holds, each form and page says the same, faults of files are named."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner

from commlib.tools.bench import view
from commlib.tools.bench.result import KIND, compared, measured
from commlib.tools.bench.view import BenchView
from commlib.tools.cli.bench.command import show
from tests.cli.bench_documents import WAYS, config, document, saved, times


def render(found: dict[str, Any], form: str, width: int) -> str:
    return BenchView(found, width).render(form)


def test_every_measured_row_is_shown_in_80_columns_and_the_plans_choice_is_starred() -> None:
    shown = render(document(), "table", 80).splitlines()
    assert max(map(len, shown)) <= 80
    lines = [line.split() for line in shown if not line.startswith("#")]
    assert len(lines) == 11 * len(document()["config"]["sizes"])  # mpich has no form in place
    starred = {(line[0], name) for line in lines for name in line if name.endswith("*")}
    assert {("8", "shm_oneshot*"), ("32768", "shm_twoshot*"), ("8", "shm_symmetric*")} <= starred
    assert ("8", "shm_twoshot*") not in starred
    assert set(WAYS) <= {name.rstrip("*") for line in lines for name in line}


def test_the_closing_names_what_others_make_faster_what_was_skipped_and_what_was_wrong() -> None:
    found = document()
    for row in found["rows"]:
        if row["algorithm"] == "mpich" and row["size"] == 64 and "time_us" in row:
            row["time_us"] = times(0.5)
    *_, values, speed = closing = BenchView(found, 80).closing()
    text = "\n".join(closing)
    assert re.search(r"# others: torch, mpich; faster than ours: all_reduce 64 \(mpich, 1\.\d\dx\)\n", text)
    assert "# skipped mpich in place: MPICH has no in-place form of it" in text
    assert values == "# Out of bounds values : 0 OK" and speed.startswith("# Avg bus bandwidth    : ")
    found = document(complete=False, ended="interrupted", out_of_bounds={"count": 3, "okay": False})
    assert {"# interrupted: not complete", "# Out of bounds values : 3 FAILED"} < {*BenchView(found, 80).closing()}
    assert render(document(rows=[]), "table", 80)


@pytest.mark.slow
def test_csv_and_markdown_have_every_row() -> None:
    found = document("broadcast")
    found["rows"] = [{**row, "why": "one\n  two" if row["chosen"] else None} for row in found["rows"]]
    text = render(found, "csv", 80)
    assert text.count("\r\n") == len(found["rows"])
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert (rows[0]["why"], text.count("\n")) == ("one two", len(found["rows"]))
    for line, row in zip(rows, found["rows"], strict=True):
        assert (line["root"], line["size"], line["in_place"]) == ("0", str(row["size"]), str(row["in_place"]).lower())
        assert line["skipped"] == row.get("skipped", "")
        assert line["time_us.p50"] == ("" if "skipped" in row else str(row["time_us"]["p50"]))
    text = render(document("all_reduce", "broadcast"), "md", 80)
    assert re.findall("^### (.*)", text, re.MULTILINE) == ["all_reduce, float32, sum", "broadcast, float32, root 0"]
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_show_prints_what_the_run_printed_in_every_form_and_of_a_newer_commlib(tmp_path: Path) -> None:
    path = saved(tmp_path, document())
    for form in BenchView.forms:
        result = CliRunner().invoke(show, [str(path), "--format", form], env={"COLUMNS": "80"})
        assert (result.exit_code, result.stdout_bytes.decode()) == (0, render(document(), form, 80) + "\n")
    for name, form in (("x.md", "md"), ("x.csv", "csv")):
        assert CliRunner().invoke(show, [str(path), "-o", str(tmp_path / name)]).output == ""
        assert (tmp_path / name).read_bytes().decode() == render(document(), form, 80) + "\n"
    assert KIND.read(saved(tmp_path, render(document(), "json", 80), "again.json")) == document()
    with mock.patch("os.get_terminal_size", side_effect=OSError):  # a pipe
        text = CliRunner().invoke(show, [str(path)], env={"COLUMNS": None}).output
    assert " count " in text, "no column is left out of a pipe"
    path = saved(tmp_path, document(rows=[{**row, "more": 1} for row in document()["rows"]]))
    assert CliRunner().invoke(show, [str(path)], env={"COLUMNS": "80"}).output == render(document(), "table", 80) + "\n"


def test_a_speed_up_is_over_the_fastest_other_library_and_as_wide_as_their_blocks() -> None:
    found = document("all_reduce", sizes=(8, 1 << 24))
    view = BenchView(found, 120)
    rows = [row for row in view.items(found["rows"]) if row["speedup"]]
    assert {row["speedup"]["over"] for row in rows} == {"mpich", "torch"}  # mpich has no form in place
    best = next(row for row in rows if row["algorithm"] == "shm_oneshot" and not row["in_place"])
    assert best["speedup"]["ratio"] == pytest.approx(1.1 / 0.9, rel=0.01)
    assert best["speedup"]["low"] < best["speedup"]["ratio"] < best["speedup"]["high"]
    assert json.loads(view.render("json")) == found, "what was measured stays as it is"
    unsteady = document("all_reduce", sizes=(8,))
    for row in measured(unsteady["rows"]):
        row["time_us"]["p90"] *= 1 if row["ours"] else 2
    wide = [row["speedup"] for row in BenchView(unsteady, 120).items(unsteady["rows"]) if row["speedup"]]
    assert wide
    assert all(speedup["high"] > 1.9 * speedup["ratio"] for speedup in wide)


def test_what_is_printed_before_the_start_begins_the_whole_head() -> None:
    found = document(notes=[], config={**document()["config"], "peers": []}), document()
    before, whole = (BenchView(each, 80).opening() for each in found)
    assert before == whole[: len(before)]
    assert (len(before), len(whole)) == (6, 8)  # a note and the speed-up come to it


def test_a_file_that_cannot_be_rendered_is_named_with_its_fault(tmp_path: Path) -> None:
    for content, said in [
        (json.dumps(document(), indent=1)[:9000], r"is not the JSON that `commlib bench -o` writes: .* line \d+"),
        (json.dumps({"schema": "commlib.plan", "version": 1}), 'its "schema" is \'commlib.plan\', not "commlib.bench"'),
        (json.dumps(document(version=2)), "has version 2, but this commlib reads version 1: upgrade commlib"),
    ]:
        path = saved(tmp_path, content)
        result = CliRunner().invoke(show, [str(path)])
        assert isinstance(result.exception, ValueError)  # the command line makes it one line and exit code 2
        assert re.search(said, str(result.exception))
        assert str(path) in str(result.exception)
        assert result.output == ""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, said in (("gone", "No such file"), ("", "Is a directory"), ("binary", "utf-8")):
        with pytest.raises(ValueError, match=said) as error:
            KIND.read(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)


def test_texts_of_a_file_do_not_reach_the_terminal_as_commands(tmp_path: Path) -> None:
    path = saved(tmp_path, document(notes=["\x1b]0;title\x07\x9b2J\u202e"]))
    for form in ("table", "md", "json"):
        said = CliRunner().invoke(show, [str(path), "--format", form], env={"COLUMNS": "80"}).output
        assert said and all(char.isprintable() or char == "\n" for char in said)


def test_beside_others_a_chart_has_the_plans_choice_each_library_and_the_ratio_alone_every_algorithm() -> None:
    latency, ratio = view.panels(document("all_reduce"))[0]
    assert [line.label for line in latency.lines] == ["commlib", "torch", "mpich"]
    assert latency.lines[0].points[8] == ratio.lines[0].points[8] ** -1 * latency.lines[2].points[8]
    found = document("all_reduce")
    found["rows"] = [row for row in found["rows"] if row["ours"]]
    (latency,) = view.panels(found)[0]
    names = [name for name, (placement, ours, *_) in WAYS.items() if ours and placement == "plain"]
    assert [line.label for line in latency.lines] == ["commlib", *names]
    assert view.chart_title(found) == "all_reduce, 2 ranks on shm, A CPU"
    found["fingerprint"]["gpu"] = "A GPU"
    assert view.chart_title(found) == "all_reduce, 2 × A GPU"
    assert CliRunner().invoke(show, ["x.json", "--plot", "x.pdf"]).output == "", "before anything is read"


def test_show_draws_and_prints_the_collectives_that_are_named(tmp_path: Path) -> None:
    file = str(saved(tmp_path, document("all_reduce", "broadcast")))
    result = CliRunner().invoke(show, [file, "broadcast", "--format", "csv"])
    assert {line.split(",")[0] for line in result.output.splitlines()[1:]} == {"broadcast"}
    result = CliRunner().invoke(show, [file, "gather"])
    assert "there are no rows of gather, but of all_reduce, broadcast" in str(result.exception)


def test_of_ours_and_of_an_other_library_the_faster_form_is_compared() -> None:
    found = document("all_gather", sizes=(8,))
    in_place = {"shm_oneshot": 1.0, "torch": 1.5}
    for row in measured(found["rows"]):
        row["time_us"] = times(in_place.get(row["algorithm"], 9.0) if row["in_place"] else 4.0)
    ours, best = compared(measured(found["rows"]))
    assert (ours["in_place"], ours["time_us"]["p50"]) == (True, 1.0)
    assert (best["algorithm"], best["in_place"], best["time_us"]["p50"]) == ("torch", True, 1.5)


def test_a_line_has_the_plans_time_and_the_ratio_to_the_fastest_other_library_at_four_sizes() -> None:
    text = render(document(), "page", 80)
    assert re.search(r"^ +8 +4K +256K +16M$", text, re.MULTILINE)
    (line,) = (line for line in text.splitlines() if line.startswith("all_reduce "))
    assert re.fullmatch(r"all_reduce +0\.81 1\.36 +2\.35 1\.44 +73\.38 2\.00 +4577\.5 2\.04", line)
    assert "faster than ours: none of them" in text and "Out of bounds values : 0 OK" in text
    assert "# plan 0123456789ab from shm.json, not measured on this machine" in text
    assert "values are not checked" in render(document(config={**config((8,)), "check": False}), "page", 80)


def made(mpich: float | dict[str, float]) -> dict[str, Any]:
    """Return a document in which commlib's choice takes 1 µs, torch 50, and mpich so long."""
    found = document("all_reduce", sizes=(8,))
    of = {"mpich": mpich, "torch": 50.0}
    for row in measured(found["rows"]):
        time = of.get(row["algorithm"], 1.0)
        row["time_us"] = times(time) if isinstance(time, float) else time
    return found


def ratio(found: dict[str, Any]) -> str:
    ((ours, best),) = (call for of in view.calls(found) for call in of)
    return view.ratio(ours, best)


def test_a_ratio_is_to_the_fastest_library_with_right_values() -> None:
    for mpich, said in [(2.0, "2.00"), (0.5, "0.50"), ({**times(9.0), "p90": 20.0}, "~9.00")]:
        assert ratio(made(mpich)) == said
    found = made(0.5)
    for row in measured(found["rows"]):
        row["wrong"] = 7 if row["algorithm"] == "mpich" else 0
    assert ratio(found) == "50.0", "wrong values win nothing"
    found["rows"] = [row for row in found["rows"] if row["ours"]]
    assert ratio(found) == "-"
