"""`commlib tune` on live ranks, and `commlib plan`: what they write, keep, resume, explain and refuse; never a time."""

import json
import re
import shlex
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch

import commlib
from commlib import backends
from commlib.plan import Plan
from commlib.plan.search import shipped_plan, user_path
from commlib.tools.timing import fingerprint
from tests.cli.calls import Run, exit_code, interrupted

SIZES = {1024, 1456, 2048, 2896, 4096, 5824, 8192, 11584, 16384}  # a grid of √2: multiples of 16 bytes, then elements


@pytest.mark.slow
def test_the_plan_is_where_init_looks_and_says_how_it_was_made(command: Run, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    done = command(*"tune all_reduce -n 2 -b 1K -e 16K --dtype float32 --time 5 --fresh".split())
    path = user_path("shm", fingerprint("shm")["device"], 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"\n# \d+ tables? of 1K to 16K in about \d+ s; ", done.stdout)
    assert f"# plan {Plan.load(path).digest} is in" in done.stdout
    document = json.loads(path.read_text())
    assert {"created", "commlib", "fingerprint", "method"} <= set(document)
    samples = json.loads(path.with_suffix(".samples.json").read_text())
    assert samples["fingerprint"] == document["fingerprint"]
    measured = samples["cases"]["all_reduce float32 eager, 2 ranks"]
    assert {1024, 16384} <= set(measured["bytes"]) <= SIZES  # as many as there is time for
    assert {"shm_oneshot", "shm_twoshot"} == {option.split()[0] for option in measured["p50_us"]}
    plan = Plan.load(path)
    why = plan.explain("all_reduce", 4096, world=2)
    assert why.algorithm in ("shm_oneshot", "shm_twoshot")
    assert plan.explain("all_reduce", 1024, world=2).runner_up in ("shm_oneshot", "shm_twoshot")
    assert plan.explain("broadcast", 4096, world=2).algorithm  # what was not tuned is as before
    assert plan.explain("all_reduce", 4096, world=4).algorithm


def test_the_shipped_plan_is_what_its_samples_say(tmp_path: Path) -> None:
    folder = Path(commlib.__file__).parent / "plans"
    for source in folder.glob("*.samples.json"):
        output = tmp_path / "again.json"
        assert exit_code("tune", "--from", str(source), "-o", str(output)) == 0
        shipped = json.loads((folder / source.name.replace(".samples.json", ".json")).read_text())
        assert json.loads(output.read_text())["fingerprint"] == json.loads(source.read_text())["fingerprint"]
        again = json.loads(output.read_text())["rules"]
        if not any("curve" in entry for rule in again for entry in rule["ranges"]):
            # Nothing was measured on few multiprocessors there: the curves are those of a GPU that has the same.
            for entry in (entry for rule in shipped["rules"] for entry in rule["ranges"]):
                entry.pop("curve", None)
        assert again == shipped["rules"]
        assert output.read_text().count("\n") <= 150


@pytest.mark.slow
def test_a_dry_run_writes_nothing_and_has_fewer_sizes_in_a_short_time(command: Run, tmp_path: Path) -> None:
    done = command(*"tune all_reduce -n 2 -d float32 --time 5 --dry-run --json".split(), XDG_CONFIG_HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    sizes = document["cases"]["all_reduce float32 eager, 2 ranks"]["bytes"]
    assert sizes[-1] == 64 << 20 and 5 < len(sizes) < 45, "the roughest grid whatever it takes, and not all"
    assert Plan(document["plan"], "printed").explain("all_reduce", 1024, world=2).algorithm
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.slow
def test_an_interrupted_run_leaves_the_plan_of_what_it_measured_and_the_way_back(command: Run, tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    output.write_text(old := Plan.only({"all_reduce": "shm_twoshot"}, base=shipped_plan("shm")).file_text)
    words = "tune all_reduce all_gather -n 2 -b 1K -e 2K --dtype float32 --time 60".split()
    said = interrupted((*words, "--fresh", "-o", str(output)), lambda _: output.read_text() != old)
    assert "# not tuned: " in said and "all_gather float32 eager symmetric" in said
    assert Plan.load(output).explain("all_reduce", 1024, world=2).runner_up == "shm_twoshot"
    subprocess.run(shlex.split(said.partition("# to go back: ")[2]), check=True)
    assert output.read_text() == old


@pytest.fixture
def run(call, monkeypatch, tmp_path):
    """Call `commlib plan` with no plan of the user's."""
    for name in ("COMMLIB_PLAN", "COMMLIB_ALGORITHM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return partial(call, "plan")


def test_without_a_backend_it_is_the_one_that_init_would_take(run, monkeypatch):
    monkeypatch.setenv("COMMLIB_BACKEND", "torch")
    assert "plans/torch.json" in run("explain", "all_reduce")[1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(backends, "find_spec", lambda name: name)
    assert (backends.here(2), backends.here(3)) == ("nccl", "shm")
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    assert backends.here(2) == "shm"
