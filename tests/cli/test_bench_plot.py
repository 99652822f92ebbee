"""The picture of a bench run: its lines, the limit, and what is said when it cannot be drawn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from commlib.bench.plot import plot
from commlib.cli.bench.show import show
from commlib.errors import Unsupported
from commlib.report.plot import SUFFIXES
from tests.cli.bench_documents import SIZES, document, saved

pytest.importorskip("matplotlib")


def drawn(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], folder: Path) -> Any:
    """Return the figure that plot() saves."""
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **options: figures.append(self))
    plot(found, folder / "x.png")
    return figures[0]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_picture_is_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"picture{suffix}"
    plot(document("all_reduce", "broadcast"), path)
    if suffix == ".png":
        assert path.read_bytes().startswith(b"\x89PNG")
    else:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def alone(*ops: str, **changes: Any) -> dict[str, Any]:
    """Return a document without other libraries' rows."""
    found = document(*ops, **changes)
    return {**found, "rows": [row for row in found["rows"] if row["ours"]]}


def test_without_peers_a_series_has_latency_and_bandwidth_with_the_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = alone("all_reduce", "broadcast")
    figure = drawn(monkeypatch, found, tmp_path)
    assert [axis.get_ylabel() for axis in figure.axes] == 2 * ["latency, µs", "bus bandwidth, GB/s"]
    latency, bandwidth = figure.axes[:2]
    lines = {line.get_label(): line for line in bandwidth.get_lines()}
    ours = {"shm_oneshot", "shm_twoshot", "lsa_ll128_exchange"}
    assert set(lines) == ours | {"the plan's choice", "limit: 7.5 GB/s"}  # plain tensors
    assert lines["limit: 7.5 GB/s"].get_ydata()[0] == found["limit"]["busbw"]
    assert "limit: 0.3 µs" in {line.get_label() for line in latency.get_lines()}
    assert len({lines[name].get_marker() for name in ours}) == len(ours)  # differ without colour
    wanted = [row for row in found["rows"] if row["op"] == "all_reduce" and not row["in_place"]]
    chosen = [row["busbw"] for row in wanted if row["chosen"] and row["placement"] == "plain"]
    assert list(lines["the plan's choice"].get_ydata()) == chosen
    assert [label.get_text() for label in latency.get_xticklabels()][-1] == "16\nMiB"


def test_beside_peers_the_ratio_to_the_best_of_them_is_below_the_latencies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = document("all_reduce", "broadcast")
    names = {"torch": "torch.distributed", "mpich": "MPI"}
    found["rows"] = [{**row, **({} if row["ours"] else {"library": names[row["algorithm"]]})} for row in found["rows"]]
    in_place = [row["time_us"] for row in found["rows"] if row["in_place"] and row["algorithm"] == "torch"]
    for time_us in in_place:
        time_us["p50"] = 0.01  # each is drawn in its faster form
    latency, _, ratio, _ = drawn(monkeypatch, found, tmp_path).axes
    lines = {line.get_label(): line for line in latency.get_lines()}
    assert set(lines) == {"commlib, by its plan", "torch.distributed", "MPI"}
    assert len({line.get_marker() for line in lines.values()}) == len(lines)  # differ without colour
    rows = [row for row in found["rows"] if row["op"] == "all_reduce" and row["size"] == SIZES[0] and "time_us" in row]
    plan = min(row["time_us"]["p50"] for row in rows if row["chosen"] and row["placement"] == "plain")
    best = min(row["time_us"]["p50"] for row in rows if not row["ours"])
    drawn_ratio = ratio.get_lines()[0]
    assert (drawn_ratio.get_xdata()[0], drawn_ratio.get_ydata()[0]) == (SIZES[0], pytest.approx(best / plan))


def test_a_library_that_works_in_place_alone_is_drawn_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = document("all_reduce")
    found["rows"] = [row for row in found["rows"] if row["ours"] or row["in_place"]]
    latency, ratio = drawn(monkeypatch, found, tmp_path).axes
    assert "torch" in {line.get_label() for line in latency.get_lines()}
    assert ratio.get_lines()[0].get_ydata()[0] > 1


def test_show_draws_and_prints_the_collectives_that_are_named(tmp_path: Path) -> None:
    file = str(saved(tmp_path, document("all_reduce", "broadcast")))
    result = CliRunner().invoke(show, [file, "broadcast", "--format", "csv"])
    assert {line.split(",")[0] for line in result.output.splitlines()[1:]} == {"broadcast"}
    result = CliRunner().invoke(show, [file, "gather"])
    assert "there are no rows of gather, but of all_reduce, broadcast" in str(result.exception)


def test_without_a_limit_a_baseline_or_sizes_the_rest_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = alone("all_reduce", baseline=None, limit={"busbw": None, "latency_us": None, "what": "not measured"})
    barrier = [{**row, "op": "barrier", "size": 0, "count": 0} for row in found["rows"] if row["size"] == 8]
    found["rows"] += barrier
    figure = drawn(monkeypatch, found, tmp_path)
    assert not [line for axis in figure.axes for line in axis.get_lines() if "limit" in str(line.get_label())]
    bars = figure.axes[2]
    assert "barrier" in bars.get_title()
    assert len(bars.patches) == 3


def test_without_plain_tensors_out_of_place_the_next_form_is_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = document()
    found["rows"] = [row for row in found["rows"] if row["placement"] == "symmetric" and row["in_place"]]
    assert "in place, symmetric tensors" in drawn(monkeypatch, found, tmp_path).axes[0].get_title()


def test_without_matplotlib_show_says_what_is_missing_and_does_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    picture = tmp_path / "x.png"
    result = CliRunner().invoke(show, [str(saved(tmp_path, document())), "--plot", str(picture)])
    assert isinstance(result.exception, Unsupported)
    assert "needs matplotlib: pip install matplotlib" in str(result.exception)
    assert "# Out of bounds values : 0 OK" in result.output
    assert not picture.exists()


def test_a_picture_that_cannot_be_drawn_is_named(tmp_path: Path) -> None:
    for path, found, said in (
        (tmp_path / "x.pdf", document(), "is no .png or .svg file; give it such a name"),
        (tmp_path / "gone" / "x.png", document(), "cannot write .*gone"),
        (tmp_path / "x.png", document(rows=[], fits=[]), "nothing to draw"),
    ):
        with pytest.raises(ValueError, match=said):
            plot(found, path)
    result = CliRunner().invoke(show, [str(saved(tmp_path, document())), "--plot", "x.pdf"])
    assert isinstance(result.exception, ValueError)
    assert result.output == ""  # before anything is printed
