"""`commlib plan`: every subcommand as a user calls it, in this process."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
import torch

from commlib import backends
from commlib.cli import main
from commlib.plan import Plan, shipped_plan


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Call `commlib plan`, in a folder of its own and with no plan of the user's; returns code, output, errors."""
    for name in ("COMMLIB_PLAN", "COMMLIB_ALGORITHM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def call(*words):
        with pytest.raises(SystemExit) as end:
            main(["plan", *words])
        output = capsys.readouterr()
        return end.value.code, output.out, output.err

    return call


def test_explain_says_algorithm_rule_file_sizes_and_match(run):
    code, output, _ = run("explain", "all_reduce", "--bytes", "1M", "--dtype", "bf16", "-n", "2")
    digest = shipped_plan("shm").digest
    assert code == 0
    assert output.splitlines() == [
        "all_reduce of 1M runs shm_twoshot: chosen by the shipped plan, not measured on",
        "    this machine (`commlib tune` does)",
        "  for sizes above 8K, with chunk_bytes=262144",
        "  gain not measured",
        f"  rules[0][2] of plans/shm.json (plan {digest}, no fingerprint)",
    ]


def test_explain_fits_the_terminal_however_much_the_machine_differs(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    code, output, _ = run("explain", "all_gather", "--plan", "nccl-nvidia-h200", "-n", "4")
    assert code == 0
    assert "device NVIDIA H200" in " ".join(output.split())
    assert max(map(len, output.splitlines())) <= 60


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("explain", "all_reduse"), "no collective 'all_reduse'; there are all_reduce, all_gather"),
        (("explain", "all_reduce", "--dtype", "bf17"), "no element type 'bf17'; there are float64"),
        (("explain", "all_reduce", "--redop", "mean"), "no reduction 'mean'; there are sum, prod"),
        (("explain", "all_reduce", "--bytes", "8X"), "'8X' is not a size; write bytes or use K, M, G"),
        (("explain", "all_reduce", "--backend", "mpi"), "no backend 'mpi'; there are nccl"),
        (("show", "absent.json"), "no plan file 'absent.json'"),
        (("explain", "all_reduce", "--redop", "band"), "on 2 ranks: there is no band of float32"),
        (("threshold", "8M", "--backend", "magic"), "no backend 'magic'"),
        (("threshold", "8M", "--above", "magic"), "no algorithm of all_reduce on shm 'magic'; there are shm_oneshot"),
        (("threshold", "8M", "--op", "barrier"), "barrier on shm has no classic pair; name --below and --above"),
        (("export", "nccl", "--to", "ompi"), "export a plan of the shm backend"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_not_known_is_one_line_with_the_valid_names_and_exit_code_2(run, words, named):
    code, output, error = run(*words)
    assert (code, output, error.count("\n")) == (2, "", 1)
    assert named in error


def test_a_pin_of_the_environment_is_told(run, monkeypatch):
    monkeypatch.setenv("COMMLIB_ALGORITHM", "all_reduce:shm_oneshot")
    _, output, _ = run("explain", "all_reduce", "--bytes", "1M")
    assert "all_reduce of 1M runs shm_oneshot" in output
    assert "pinned by COMMLIB_ALGORITHM" in output
    why = shipped_plan("shm").explain("broadcast", 1 << 20, world=2)
    assert f"{why.rule} of plans/shm.json" in run("explain", "broadcast")[1]


def test_explain_tells_of_an_asynchronous_call(run):
    _, output, _ = run("explain", "all_reduce", "--bytes", "64M", "--plan", "nccl", "--async-op")
    assert "all_reduce of 64M runs lsa_pipe_twoshot: chosen by" in output
    assert "asynchronous: the knee of its curve, 24 of 132 multiprocessors" in output


def test_without_a_backend_it_is_the_one_that_init_would_take(run, monkeypatch):
    monkeypatch.setenv("COMMLIB_BACKEND", "torch")
    assert "plans/torch.json" in run("explain", "all_reduce")[1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(backends, "find_spec", lambda name: name)
    assert (backends.here(2), backends.here(3)) == ("nccl", "shm")
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    assert backends.here(2) == "shm"


def test_show_prints_the_rules_of_a_file_a_shipped_plan_or_the_one_in_force(run):
    Path("p.json").write_text(shipped_plan("torch").file_text)
    assert run("show")[1].startswith(f"plan {shipped_plan('shm').digest} from plans/shm.json\n")
    assert run("show", "torch")[1].partition(" from ")[0] == run("show", "p.json")[1].partition(" from ")[0]


def test_validate_names_the_line_of_each_faulty_file(run):
    Path("good.json").write_text(shipped_plan("shm").file_text)
    lines = shipped_plan("shm").file_text.splitlines()
    Path("cut.json").write_text("\n".join(lines[:9]))
    Path("odd.json").write_text("\n".join(lines).replace("shm_twoshot", "shm_magic"))
    code, output, error = run("validate", "good.json", "cut.json", "odd.json", "nccl")
    assert code == 1
    assert [line.partition(",")[0] for line in output.splitlines()] == ["good.json: OK", "nccl: OK"]
    cut, odd = error.splitlines()
    assert "plan cut.json, line 9: the file ends here" in cut
    assert "plan odd.json, line 8: rules[0].ranges[2]: all_reduce has no algorithm 'shm_magic'; it has shm_" in odd
    assert run("validate", "good.json")[0] == 0


def test_diff_says_where_plans_choose_differently(run):
    run("threshold", "64K", "-o", "t.json")
    assert run("diff", "shm", "shm") == (0, "", "")
    code, output, _ = run("diff", "shm", "t.json")
    assert code == 1
    assert "all_reduce plain world=1-2\n" in output
    assert "  above 8K, up to 64K: shm_twoshot chunk_bytes=262144 → shm_oneshot\n" in output
    assert "all_gather" not in output


def test_threshold_writes_the_classic_pair_on_top_of_the_shipped_plan(run):
    _, output, _ = run("threshold", "8M", "--backend", "nccl", "-n", "4")
    plan = Plan.parse(output, "written")
    assert plan.rules[0].world == (4, 4)
    chosen = [plan.explain("all_reduce", n, world=4).algorithm for n in (8 << 20, (8 << 20) + 1)]
    assert chosen == ["nccl_staged", "nccl_direct"]
    assert (
        plan.explain("all_reduce", 8, world=2).algorithm
        == shipped_plan("nccl").explain("all_reduce", 8, world=2).algorithm
    )


def test_export_to_nccls_tuner_gives_lines_that_it_can_read(run):
    code, _, error = run("export", "--to", "nccl-tuner", "-n", "4", "-o", "tuner.conf")
    lines = Path("tuner.conf").read_text().splitlines()
    rows = [row for row in csv.reader(line for line in lines if not line.startswith("#"))]
    assert code == 0
    assert max(map(len, lines)) < 255  # its reader takes what is longer for two lines
    assert {len(row) for row in rows} == {10}
    assert {row[0] for row in rows} == {"allreduce", "allgather", "reducescatter", "broadcast", "reduce"}
    assert {row[4] for row in rows} <= {"ll", "ll128", "simple"}
    assert {row[7] for row in rows} == {"4"}
    of_all_reduce = [row for row in rows if row[0] == "allreduce"]
    assert of_all_reduce[0][3:5] == ["ring", "ll128"]
    ends = [int(row[2]) for row in of_all_reduce]
    assert [int(row[1]) for row in of_all_reduce] == [0, *(end + 1 for end in ends[:-1])]
    assert "all_to_all up to 8M by lsa_ll128_exchange" in error


def numbers(text):
    """Read Open MPI's classic rules as it does: whole numbers, and # up to the end of a line is nothing."""
    words = " ".join(line.partition("#")[0] for line in text.splitlines()).split()
    return iter([int(word) for word in words])


def read_rules(text):
    """Return {collective: {size of communicator: [rule]}}, where a rule has four numbers."""
    left = numbers(text)
    found = {}
    for _ in range(next(left)):
        sizes = found.setdefault(next(left), {})
        for _ in range(next(left)):
            rules = sizes.setdefault(next(left), [])
            rules += [tuple(next(left) for _ in range(4)) for _ in range(next(left))]
    assert list(left) == []
    return found


def test_export_to_open_mpi_gives_rules_that_it_can_read(run):
    code, output, error = run("export", "shm", "--to", "ompi", "-n", "3")
    found = read_rules(output)
    assert code == 0
    assert found[2] == {0: [(0, 0, 0, 0)], 3: [(0, 3, 0, 0), (4097, 5, 0, 262144)], 4: [(0, 0, 0, 0)]}
    assert {rules[0][0] for sizes in found.values() for rules in sizes.values()} == {0}
    messages = (f"send_recv {sizes} by shm_mailbox" for sizes in ("up to 64K", "above 64K, up to 2M", "above 2M"))
    norms = ("up to 4K by shm_composed", "above 4K by shm_twoshot")
    left = [*messages, *(f"all_reduce_rms_norm {how}" for how in norms)]
    assert error.splitlines() == [f"commlib: left out, because ompi cannot express it: {what}" for what in left]


def test_the_plan_that_init_would_take_is_the_users(run, monkeypatch):
    from commlib.plan import user_path
    from commlib.timing import fingerprint

    path = user_path("shm", fingerprint("shm")["device"], 2)
    path.parent.mkdir(parents=True)
    document = {**shipped_plan("shm").document, "fingerprint": fingerprint("shm")}
    path.write_text(json.dumps(document))
    assert f"of {path} (plan " in " ".join(run("explain", "all_reduce")[1].split())
    assert "match 6/6" in run("explain", "all_reduce")[1]
    assert "plans/shm.json" in run("explain", "all_reduce", "-n", "3")[1]
    monkeypatch.setenv("COMMLIB_PLAN", "shm.json")
    Path("shm.json").write_text(shipped_plan("shm").file_text)
    assert "of shm.json (plan " in run("explain", "all_reduce")[1]


def test_a_plan_is_written_into_a_pipe_and_not_in_its_place(run):
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert run("threshold", "64K", "-o", "pipe")[0] == 0
    assert not Path("pipe").is_file()
    assert Plan.parse(os.read(reader, 1 << 20).decode(), "pipe").rules
    os.close(reader)
