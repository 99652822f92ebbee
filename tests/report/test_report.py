"""What commands share: whole files, faults and their place, how a run ends, pages, and the results that are kept."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from commlib.debug import metrics
from commlib.errors import CommError
from commlib.tools.bench.result import KIND, measured, median_us, rivals
from commlib.tools.bench.view import BenchView
from commlib.tools.cli.bench.command import show
from commlib.tools.cli.report.command import Section, html, markdown
from commlib.tools.report import chart
from commlib.tools.report import document as files
from commlib.tools.report.chart import Line, Panel
from commlib.tools.report.document import Report, Row, unpacked
from commlib.tools.report.formats import Column
from commlib.tools.report.run import Output, until_it_ends
from commlib.tools.report.view import View
from tests.cli.bench_documents import document

ROOT = Path(__file__).resolve().parents[2]
ROWS = [{"op": "all_reduce", "size": 8, "time": {"p50": 1.25}}, {"op": "barrier", "size": 0, "time": None}]


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    link = tmp_path / "link.json"
    link.symlink_to(path)
    files.write(link, "new")
    assert (path.read_text(), link.is_symlink()) == ("new\n", True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.json", "report.json"]


@pytest.mark.parametrize("write", [files.write, metrics._replace])
def test_a_link_that_lies_in_wait_is_not_followed(tmp_path, write, monkeypatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    monkeypatch.setattr("secrets.token_hex", lambda nbytes: str(os.getpid()))
    (tmp_path / f".report.json.{os.getpid()}").symlink_to(victim)
    with pytest.raises((ValueError, OSError), match="exists"):
        write(tmp_path / "report.json", "new")
    assert victim.read_text() == "kept"


def test_what_is_no_regular_file_is_written_into_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert files.unwritable(pipe) == ""
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    files.write(pipe, "rows")
    reader.join(10)
    assert found == ["rows\n"]
    assert pipe.is_fifo()


def test_what_cannot_be_written_is_said_before(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("gone", "file"):
        assert "there is no folder" in files.unwritable(tmp_path / folder / "x.json")
    assert files.unwritable(tmp_path / "x.json") == ""
    for path in (tmp_path, tmp_path / "gone" / "x.json"):
        with pytest.raises(ValueError, match="cannot write"):
            files.write(path, "x")


class Plain(View):
    """Little more than the least that a view can be."""

    forms: ClassVar = ("table", "csv", "json")

    def columns(self) -> list[Column]:
        return [Column("size", lambda row: str(row["size"]), 6)]

    def opening(self) -> list[str]:
        return ["# opening"]

    def closing(self) -> list[str]:
        return [f"# {self.document['ended'] or 'all'}"]

    def title(self, rows: Any) -> str:
        return str(rows[0]["op"])


class Sizes(Report):
    """A report of rows alone."""

    def __init__(self) -> None:
        super().__init__(KIND, "commlib bench", "cpu")


def run(output: Output, *rows: dict[str, Any], ends: BaseException | None = None) -> int:
    report = Sizes()

    def measure() -> None:
        output.open(report, len(rows))
        for row in rows:
            report.rows.append(row)
            output.rows([row])
        if ends is not None:
            raise ends

    return until_it_ends(measure, output.finish)


def test_a_run_prints_as_it_goes_what_the_whole_document_gives(capsys, tmp_path) -> None:
    path = tmp_path / "x.json"
    assert run(Output(Plain, path=path), *ROWS) == 0
    printed = capsys.readouterr().out
    assert printed == "# opening\n#\n# all_reduce\n# size\n     8\n#\n# barrier\n# size\n     0\n# all\n"
    assert Plain(json.loads(path.read_text()), 80).table() + "\n" == printed


@pytest.fixture
def hangs_up():
    """A hangup ends us, also where nohup started these tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangs_up")
@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_what_was_measured_and_a_second_one_waits(asked, capsys, monkeypatch, tmp_path) -> None:
    closing, path, report = Plain.closing, tmp_path / "x.json", Sizes()
    output = Output(Plain, path=path)

    def impatient(self: Plain) -> list[str]:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        return closing(self)

    def measure() -> None:
        output.open(report, len(ROWS))
        report.rows.append(ROWS[0])
        os.kill(os.getpid(), asked)

    monkeypatch.setattr(Plain, "closing", impatient)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert until_it_ends(measure, output.finish) == 128 + asked
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    kept = json.loads(path.read_text())
    assert (kept["rows"], kept["ended"]) == (ROWS[:1], "interrupted")
    assert capsys.readouterr().out.endswith("# interrupted\n")


UNREAD = """
import sys, pathlib
from tests.report.test_report import ROWS, Output, Plain, run
output = Output(Plain, path=pathlib.Path(sys.argv[1]) if sys.argv[1:] else None)
assert run(output, *ROWS) == 0
sys.exit(141 if output.unread else 0)
"""


def test_a_file_is_written_though_nobody_reads_stdout_and_the_exit_code_says_it(quick_python, tmp_path) -> None:
    path = tmp_path / "x.json"
    for words, code in (([str(path)], 0), ([], 141)):
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run(
            [str(quick_python), "-c", UNREAD, *words], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
        os.close(writer)
        assert (result.returncode, result.stderr) == (code, "")
    assert json.loads(path.read_text())["rows"] == ROWS


@pytest.mark.usefixtures("hangs_up")
@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_reported_from_a_call_that_never_ends(asked: signal.Signals) -> None:
    script = (
        "import ctypes, os, signal, threading\n"
        "from commlib.tools.report import run\n"
        "run.STUCK_S = 0.1\n"
        "def stuck():\n"
        f"    threading.Timer(0.1, os.kill, (os.getpid(), {asked:d})).start()\n"
        "    mutex = ctypes.create_string_buffer(64)\n"
        "    for _ in range(2):\n"
        "        ctypes.CDLL(None).pthread_mutex_lock(mutex)\n"
        "run.until_it_ends(stuck, lambda ended: print(ended, flush=True))\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert (result.returncode, result.stdout) == (128 + asked, "interrupted\n")


def test_an_error_is_raised_after_the_report_and_nothing_measured_is_no_report(capsys) -> None:
    with pytest.raises(CommError, match="rank 1 died"):
        run(Output(Plain), ROWS[0], ends=CommError("rank 1 died"))
    assert capsys.readouterr().out.endswith("# rank 1 died\n")
    assert run(Output(Plain, form="json"), ends=KeyboardInterrupt()) == 130
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "commlib: interrupted before anything was measured\n")


def test_json_on_stdout_stands_alone_and_a_silent_rank_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run(Output(Plain, form="json"), *ROWS)
    assert json.loads(capsys.readouterr().out)["rows"] == ROWS
    run(Output(Plain, speaks=False), *ROWS)
    assert capsys.readouterr() == ("", "")


def test_packed_documents_are_whole_again_with_a_line_for_a_row(tmp_path: Path) -> None:
    first = document("all_reduce")
    second = {"schema": "commlib.late", "rows": [{"bytes": 8, "us": None}, {"bytes": 9, "us": {"p50": 1.5}}], "x": {}}
    (tmp_path / "x.json").write_text(json.dumps([first, second]), encoding="utf-8")
    keep = [sys.executable, "benchmarks/keep.py", str(tmp_path / "x.json"), "-o", str(tmp_path / "kept.json")]
    subprocess.run(keep, cwd=ROOT, check=True)
    text = (tmp_path / "kept.json").read_text(encoding="utf-8")
    again = unpacked(json.loads(text))
    assert again[1] == second
    rows, wanted = again[0].pop("rows"), first.pop("rows")
    assert len(rows) == len(wanted)
    assert all(row in wanted for row in rows)
    assert again[0] == first
    assert text.count("\n   [") == len(document("all_reduce")["rows"]) + 2
    assert unpacked([1, 2]) == [[1, 2]]
    assert unpacked({"rows": [1]}) == [{"rows": [1]}]


def test_a_file_of_several_runs_is_shown_whole_or_in_part(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps([document("all_reduce"), document("broadcast")]))
    shown = [BenchView(found, 80).render("md") for found in KIND.read_all(path)]
    whole = CliRunner().invoke(show, [str(path), "--format", "md"])
    assert whole.output == "\n\n".join(shown) + "\n"
    assert CliRunner().invoke(show, [str(path), "--format", "md", "--part", "2"]).output == shown[1] + "\n"
    for words in (["--part", "3"], ["--plot", "x.png"]):
        assert CliRunner().invoke(show, [str(path), *words]).exit_code == 2
    with pytest.raises(ValueError, match="has 2 runs"):
        KIND.read(path)


EVIL = "<script>alert(1)</script>|`*_[a](javascript:b)"


def test_a_page_and_its_markdown_have_every_part_and_what_comes_from_outside_is_text() -> None:
    section = Section("name", "Title_of", "<svg></svg>", [("warn", EVIL)], EVIL)
    text, page = markdown(section), html(EVIL, EVIL, [section, section])
    for part in ("# Title_of", "\\<script>", f"```text\n{EVIL}\n```"):
        assert part in text
    assert page.count("&lt;script&gt;alert(1)") == 2 + 2 * 2 + 1  # the title stands twice
    assert '<p class="warn">' in page and "<svg></svg>" in page
    assert "<script" not in page and re.search(r"(?:src|href)=.?(?:https?:)?//|url\(|@import", page) is None


@pytest.mark.parametrize("values", [[1.0, 1.0], [0.5, 900.0]])
def test_a_chart_is_a_file_or_an_element_in_the_colours_of_the_page(values: list[float], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    line = Line(EVIL, dict(zip([8, 64], values, strict=True)))
    rows = [[Panel(EVIL, lines=[line], log_y=True, level=1.0)], [Panel("more", lines=[line])]]
    element = chart.svg(EVIL, rows)
    assert ElementTree.fromstring(element).tag.endswith("svg")
    assert "currentColor" in element and chart.INK not in element and "<script" not in element
    assert chart.svg(EVIL, rows) == element, "the same figures are the same text"
    for suffix in chart.SUFFIXES:
        chart.draw(tmp_path / f"x{suffix}", "title", rows)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="nothing to draw"):
        chart.draw(tmp_path / "x.png", "title", [])
    with pytest.raises(ValueError, match=r"no \.png or \.svg"):
        chart.check_name(tmp_path / "x.pdf")


RESULTS = sorted((ROOT / "benchmarks/results").iterdir())
UNITS = {"KiB": 10, "MiB": 20}
PARTS = {2: 2, 4: 0}  # GPUs of a half of the README's table: part of the file
LABELS = {"NCCL": "nccl", "FlashInfer": "flashinfer", "SGLang": "sglang"}


def test_a_file_has_documents_with_rows_and_a_line_for_each_and_right_values() -> None:
    for path in RESULTS:
        text = path.read_text(encoding="utf-8")
        documents = unpacked(json.loads(text))
        assert all(document["rows"] for document in documents), path
        assert text.count("\n   [") == sum(len(document["rows"]) for document in documents), path
        if documents[0]["schema"] == KIND.name:
            views = [BenchView(document, 120) for document in KIND.read_all(path)]
            assert all(view.render(form) for view in views for form in BenchView.forms), path
            assert all("# Out of bounds values : 0 OK" in view.table() for view in views), path


def readme_tables() -> list[list[str]]:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def rows_of(file: str, gpus: int, size: str) -> list[Row]:
    documents = unpacked(json.loads((ROOT / "benchmarks/results" / file).read_text(encoding="utf-8")))
    document = documents[PARTS[gpus]]
    assert document["config"]["ranks"] == gpus
    number, unit = size.split()
    wanted = int(number) << UNITS[unit]
    return [row for row in measured(document["rows"]) if (row["op"], row["size"]) == ("all_reduce", wanted)]


def about(value: float, text: str) -> bool:
    return abs(value - float(text)) <= 0.5 * 10 ** -len(text.partition(".")[2]) + 1e-9


def test_the_readme_s_times_are_of_the_results_and_the_fastest_is_bold() -> None:
    head, *rows = [row for row in readme_tables() if len(row) == 9]
    assert len(rows) > 5
    for size, *cells in rows:
        for gpus, at in ((2, 0), (4, 4)):
            assert head[at + 1] == f"{gpus} × H200: commlib"
            found = rows_of("bench_h200.json", gpus, size)
            ours = [row for row in found if row["ours"] and row["chosen"] and row["placement"] == "plain"]
            times = [min(median_us(row) for row in ours if not row["in_place"])]
            for name in head[at + 2 : at + 5]:
                label = LABELS[name]
                times.append(min(median_us(row) for row in rivals(found) if row["algorithm"].startswith(label)))
            shown = cells[at : at + 4]
            assert all(about(time, cell.strip("*")) for time, cell in zip(times, shown, strict=True)), (size, shown)
            assert [cell.startswith("**") for cell in shown] == [time == min(times) for time in times], (size, shown)
            assert min(times) <= min(map(median_us, rivals(found))), f"{size}: a library without a column is faster"


def test_what_the_readme_calls_measured_is_in_the_results() -> None:
    documents = [one for path in RESULTS for one in unpacked(json.loads(path.read_text(encoding="utf-8")))]
    prints = [document.get("fingerprint", {}) for document in documents]
    for hardware, ranks, _, nccl, torch, state in [row for row in readme_tables() if len(row) == 6]:
        for gpu in hardware.split(", ") if state.startswith("measured") and "CPU" not in hardware else []:
            for count in ranks.split(", "):
                there = [one for one in prints if gpu in one.get("gpu", "") and one["gpus"] == int(count)]
                assert any(one["nccl"] == nccl and one["torch"].startswith(torch) for one in there), (gpu, count)
