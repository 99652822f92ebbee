"""`commlib tune` on live ranks: what it writes, keeps, resumes and refuses; never a time."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import commlib
from commlib.cli import main
from commlib.cli.tune.plot import plot
from commlib.plan import Plan
from commlib.tuner import beside
from commlib.tuner.case import Case, Option
from commlib.tuner.choose import Change, Choice, Settings, Stretch, choose
from commlib.tuner.judge import Verdict
from commlib.tuner.rules import Table
from commlib.tuner.samples import Samples
from commlib.tuner.tables import Tables
from commlib.tuner.words import changes, left_out, table_lines, way_back

QUICK = ("all_reduce", "-n", "2", "-b", "1K", "-e", "16K", "--dtype", "float32", "--time", "5")
SIZES = {1024, 1456, 2048, 2896, 4096, 5824, 8192, 11584, 16384}  # a grid of √2: multiples of 16 bytes, then elements


Tune = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def tuned(tune: Tune, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One run that most tests look at: the folder of the user's settings, and what was printed."""
    home = tmp_path_factory.mktemp("home")
    done = tune(*QUICK, "--fresh", "--force", home=home)
    assert (done.returncode, done.stderr) == (0, "")
    return home, done.stdout


def plan_file(home: Path) -> Path:
    (path,) = (path for path in (home / "commlib" / "plans").glob("*.json") if ".samples" not in path.name)
    return path


def test_the_plan_is_where_init_looks_and_says_how_it_was_made(tuned: tuple[Path, str]) -> None:
    path = plan_file(tuned[0])
    assert path.name.startswith("shm-")
    assert path.name.endswith("-2.json")
    document = json.loads(path.read_text())
    assert {"created", "commlib", "fingerprint", "method"} <= set(document)
    samples = json.loads(path.with_suffix(".samples.json").read_text())
    assert samples["fingerprint"] == document["fingerprint"]
    measured = samples["cases"]["all_reduce float32 eager, 2 ranks"]
    assert set(measured["bytes"]) == SIZES
    assert {"shm_oneshot", "shm_twoshot"} == {option.split()[0] for option in measured["p50_us"]}
    plan = Plan.load(path)
    why = plan.explain("all_reduce", 4096, world=2)
    assert why.algorithm in ("shm_oneshot", "shm_twoshot")
    # The smallest size, as an algorithm that is far behind is not measured at larger ones.
    assert plan.explain("all_reduce", 1024, world=2).runner_up in ("shm_oneshot", "shm_twoshot")
    assert plan.explain("broadcast", 4096, world=2).algorithm  # what was not tuned is as before
    assert plan.explain("all_reduce", 4096, world=4).algorithm


def test_no_line_is_wider_than_the_terminal(tuned: tuple[Path, str]) -> None:
    assert max(len(line) for line in tuned[1].splitlines() if "/" not in line) <= 80


def test_it_prints_the_choice_its_regret_and_the_file(tuned: tuple[Path, str]) -> None:
    home, said = tuned
    for words in ("2 ranks on shm", "crossover", "regret", "than the default", plan_file(home).name, "what changes"):
        assert words in said
    assert f"# to go back: rm {plan_file(home)}" in said.splitlines()


def test_init_takes_the_plan_from_then_on(tuned: tuple[Path, str], quick_python: Path) -> None:
    home, said = tuned
    script = "import commlib\nwith commlib.init() as comm:\n    print(comm.plan.digest)"
    done = subprocess.run(
        [str(quick_python), "-m", "commlib", "run", "-n", "2", "--", str(quick_python), "-c", script],
        env={**os.environ, "XDG_CONFIG_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.count(Plan.load(plan_file(home)).digest) == 2
    assert f"# plan {Plan.load(plan_file(home)).digest} is in" in said


def test_rules_are_made_again_from_samples_without_a_measurement(
    tuned: tuple[Path, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source, output = plan_file(tuned[0]).with_suffix(".samples.json"), tmp_path / "again.json"
    with pytest.raises(SystemExit) as end:
        main(["tune", "--from", str(source), "-o", str(output)])
    assert (end.value.code, f"is in {output}" in capsys.readouterr().out) == (0, True)
    plan = Plan.load(output)
    assert {(rule.op, rule.world) for rule in plan.rules} == {("all_reduce", (2, 2))}
    before = Plan.load(plan_file(tuned[0]))
    sizes = [size for size in SIZES if size <= 4096]
    assert [plan.explain("all_reduce", n, world=2).algorithm for n in sizes]
    assert plan.document["fingerprint"] == before.document["fingerprint"]


def test_the_shipped_plan_is_what_its_samples_say(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = Path(commlib.__file__).parent / "plans"
    for source in folder.glob("*.samples.json"):
        output = tmp_path / "again.json"
        with pytest.raises(SystemExit):
            main(["tune", "--from", str(source), "-o", str(output)])
        shipped = json.loads((folder / source.name.replace(".samples.json", ".json")).read_text())
        again = json.loads(output.read_text())["rules"]
        if not any("curve" in entry for rule in again for entry in rule["ranges"]):
            # Nothing was measured on few multiprocessors there: the curves are those of a GPU that has the same.
            for entry in (entry for rule in shipped["rules"] for entry in rule["ranges"]):
                entry.pop("curve", None)
        assert again == shipped["rules"]
        assert output.read_text().count("\n") <= 150


def test_a_dry_run_writes_nothing_and_ends_well_whatever_the_noise(tune: Tune, tmp_path: Path) -> None:
    done = tune(*QUICK, "--dry-run", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    changes = "# what changes" in done.stdout
    assert ("was not written" if changes else "the plan in force stays") in done.stdout
    assert list(tmp_path.rglob("*")) == []


def test_the_plan_that_is_replaced_is_kept_for_the_way_back(tmp_path: Path) -> None:
    path, plan = tmp_path / "shm-cpu-2.json", Plan.only({"all_reduce": "shm_oneshot"})
    assert way_back(path, beside.keep(path, plan, {})) == f"# to go back: rm {path}"
    text = path.read_text()
    said = way_back(path, beside.keep(path, Plan.only({"all_reduce": "shm_twoshot"}), {}))
    assert said == f"# to go back: mv {path}.before {path}"
    subprocess.run(shlex.split(said.partition(": ")[2]), check=True)
    assert path.read_text() == text


def test_an_interrupted_run_goes_on_from_its_samples(tune: Tune, tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    samples = output.with_suffix(".samples.jsonl")
    command = [sys.executable, "-m", "commlib", "tune", *QUICK[:-1], "60", "--fresh", "--force", "-o", str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while not (samples.exists() and samples.read_text().count("\n") >= 2) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        said = process.stdout.read()
    assert process.returncode == 130
    assert "--resume" in said
    assert not output.exists()
    before = samples.read_text().splitlines()
    done = tune(*QUICK, "--fresh", "--force", "--resume", "-o", str(output), home=tmp_path)
    assert done.returncode == 0, done.stderr
    after = samples.read_text().splitlines()
    assert after[: len(before)] == before
    assert len(after) == 2 * len(SIZES)  # on ordinary and on symmetric tensors
    assert Plan.load(output).rules


def test_a_plan_is_kept_if_it_is_as_good_for_every_type_that_the_new_rules_would_serve() -> None:
    """The rule for all types is as good as what was measured; an older one, of bfloat16 alone, may not be."""
    quick, slow = Option("shm_oneshot"), Option("shm_twoshot")
    wide, narrow = (Case("all_reduce", dtype, "eager", "plain") for dtype in (torch.float32, torch.bfloat16))
    ours = Plan.only({"all_reduce": "shm_oneshot"}).document["rules"]
    older = [{"op": "all_reduce", "dtype": "bfloat16", "ranges": [{"max_bytes": None, "algorithm": "shm_twoshot"}]}]
    plan = Plan({"schema": "commlib.plan", "version": 2, "rules": [*older, *ours]}, "in force")
    for factor, kept in ((1.0, True), (1.5, False)):
        of_type = Samples({1024: {quick: (1e-6,) * 5, slow: (factor * 1e-6,) * 5}})
        tables = Tables(plan, 1, Settings(), by_mode=False)
        tables.add(wide, of_type)
        tables.add(narrow, of_type)
        table = Table(
            wide, "*", "*", of_type, tables.measured[wide][1], Verdict(0.0, 0.0, None), (("bfloat16", "eager"),)
        )
        assert tables.keeps(table) == kept
        assert tables.keeps(replace(table, serves=()))


def test_a_table_that_is_slower_than_the_default_says_that_the_plan_in_force_stays() -> None:
    quick = Option("shm_oneshot")
    samples = Samples({1024: {quick: (1e-6,) * 5}})
    case = Case("all_reduce", torch.float32, "eager", "plain")
    table = Table(case, "*", "*", samples, choose(samples), Verdict(0.0, 0.0, -0.1, {1024: 0.1}))
    said = "\n".join(table_lines(table, 80, True))
    assert "the plan in force stays: what was measured is slower than the default; --force writes it" in said
    assert "the default is 10% faster at 1K" in said


def test_it_says_what_changes_by_how_much_and_how_sure_and_what_was_left_out() -> None:
    quick, slow = Option("shm_oneshot"), Option("shm_twoshot", (("chunk_bytes", 4096),))
    stretches = Stretch(quick, (1024, 2048), 2048), Stretch(slow, (4096, 8192))
    found = Change((1024, 2048), slow, quick, 0.25, 0.97), Change((4096, 8192), None, slow)
    case = Case("all_reduce", torch.float32, "eager", "plain")
    table = Table(case, "*", "*", Samples({}), Choice(stretches, found), Verdict(0.0, 0.0, None))
    assert list(changes(table)) == [
        "#   all_reduce float32 eager, 1K to 2K: shm_oneshot instead of shm_twoshot chunk_bytes=4096: "
        "25% faster, 97% sure",
        "#   all_reduce float32 eager, from 4K: shm_twoshot chunk_bytes=4096, for which there was no rule",
    ]
    unsure = [Choice(stretches, unsure=2), Choice(stretches, unsure=1)]
    assert left_out(unsure, Settings())[0].startswith("# left out: 3 switches, measured as")
    assert left_out(unsure[1:], Settings())[0].startswith("# left out: 1 switch, measured as")
    assert left_out([Choice(stretches)], Settings()) == []


def test_a_picture_has_a_panel_for_each_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    quick, slow = Option("shm_oneshot"), Option("shm_twoshot", (("chunk_bytes", 4096),))
    samples = Samples({size: {quick: (size * 1e-9,), slow: (3e-6,)} for size in (1024, 4096, 16384)})
    choice = Choice((Stretch(quick, (1024,), 2048, (1024, 3000)), Stretch(slow, (4096, 16384))))
    cases = [Case(op, torch.float32, "eager", "plain") for op in ("all_reduce", "all_gather")]
    plot(dict.fromkeys(cases, (samples, choice)), tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text()
    assert all(f"<!-- {words} -->" in text for words in (*map(str, cases), "shm_oneshot", "shm_twoshot", "chosen"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("all_reduces",), "no collective 'all_reduces'"),
        (("--dtype", "float31"), "no element type 'float31'"),
        (("--algorithms", "magic"), "no algorithm 'magic'"),
        (("--mode", "lazy"), "no mode 'lazy'"),
        (("-b", "1M", "-e", "1K"), "less than -b"),
        (("-e", "12Q"), "is not a size"),
        (("-b", "0", "-e", "0"), "-e is 0 bytes, of which no call is better than another"),
        (("--time", "soon"), "is not a time"),
        (("all_reduce", "--time", "1s"), "too short"),
        (("--plot", "curves.txt"), "is no .png or .svg file"),
    ],
)
def test_a_wrong_option_is_said_once_before_any_rank_starts(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["tune", "-n", "2", *words])
    message = capsys.readouterr().err
    assert end.value.code == 2
    assert message.count("\n") == 1
    assert said in message


def test_graphs_need_gpus_and_one_rank_has_nothing_to_tune(tune: Tune, tmp_path: Path) -> None:
    done = tune("all_reduce", "-n", "2", "--mode", "graph", home=tmp_path)
    assert done.returncode == 2
    assert "needs GPUs" in done.stderr
    alone = tune("all_reduce", home=tmp_path)
    assert alone.returncode == 2
    assert "start them with -n N" in alone.stderr
