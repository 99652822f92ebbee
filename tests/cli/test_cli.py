"""The command line as a user meets it: quick, one-line errors, right exit codes."""

import json
import subprocess
import sys
from importlib.metadata import entry_points

import click
import pytest
import torch
from click.testing import CliRunner

import commlib
from commlib.errors import BuildFailed, CommTimeout
from commlib.tools.bench import kernels, result
from commlib.tools.cli import COMMANDS, main
from commlib.tools.cli.options import Seconds
from commlib.tools.report.run import Output
from commlib.tools.testing.ranks import Outcome, RankError
from tests.cli.calls import exit_code, refuses, written

HELP = """
import sys
before = set(sys.modules)
from commlib.tools.cli import main
main(["--help"], standalone_mode=False)
loaded = set(sys.modules) - before
ours = {name for name in loaded if name.partition(".")[0] not in {*sys.stdlib_module_names, "click"}}
print("LOADED", *sorted(ours), "subprocess" in loaded)
"""


def test_help_loads_and_starts_nothing_that_takes_time():
    """Its time is Python's own start, click, and five small modules: no test under load can measure it better."""
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    loaded = done.stdout.partition("LOADED ")[2].split()
    modules = (".env", ".errors", ".tools", ".tools.cli", ".version")
    assert loaded == ["commlib", *(f"commlib{name}" for name in modules), "False"]


def test_importing_the_command_line_loads_nothing_heavy():
    modules = ["cli", *(f"cli.{name}" for name in COMMANDS), "launch", "report.chart"]
    modules += [f"cli.bench.{name}" for name in ("command", "compare", "kernels")]
    heavy = "{'torch', 'commlib._native', 'numpy', 'mpi4py', 'matplotlib', 'rich'}"
    names = ", ".join(f"commlib.tools.{module}" for module in modules)
    code = f"import sys, {names}; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_check_of_one_backend_starts_no_other(call):
    code, output, _ = call("test", "--quick", "--op", "barrier", "--backend", "torch")
    assert code == 0 and "torch_direct" in output and "shm" not in output
    assert "no backend 'none'; there are nccl, shm, torch" in call("test", "--backend", "none")[2]


def test_an_error_is_one_line_and_its_kind_is_the_exit_code(monkeypatch, capsys):
    for error, code, line in [
        (ValueError("count is 3 on rank 0"), 2, "commlib: count is 3 on rank 0\n"),
        (CommTimeout("rank 1 did not come\nin 3 s"), 1, "commlib: rank 1 did not come in 3 s\n"),
        (FileNotFoundError(2, "No such file", "x.json"), 1, "commlib: [Errno 2] No such file: 'x.json'\n"),
        (OSError(24, "Too many files"), 1, "commlib: [Errno 24] Too many files; raise `ulimit -n`\n"),
        (KeyboardInterrupt(), 130, "commlib: interrupted\n"),
    ]:
        monkeypatch.setattr(type(main), "get_command", lambda self, ctx, name, error=error: raising(error))
        assert exit_code("test") == code
        assert capsys.readouterr().err.lstrip("\n") == line


def test_what_a_compiler_says_stands_above_the_line(monkeypatch, capsys):
    failed = BuildFailed("g++ cannot compile x.cc:\nx.cc:1: error\nto repeat it: g++ x.cc")
    error = RankError({0: Outcome(trace="failed:\n …", error=failed), 1: Outcome(trace="was ended")}).cause
    monkeypatch.setattr(type(main), "get_command", lambda self, ctx, name: raising(error))
    assert exit_code("test") == 1
    *log, line = capsys.readouterr().err.splitlines()
    assert (log, line) == (
        ["x.cc:1: error", "to repeat it: g++ x.cc"],
        "commlib: g++ cannot compile x.cc; the compiler's message is above",
    )


def raising(error):
    @click.command()
    def command():
        raise error

    return command


def test_a_traceback_is_shown_when_asked_for(monkeypatch):
    monkeypatch.setenv("COMMLIB_TRACEBACK", "1")
    monkeypatch.setattr(type(main), "get_command", lambda self, ctx, name: raising(ValueError("why")))
    with pytest.raises(ValueError, match="why"):
        main(["test"])


def test_a_time_has_one_grammar():
    for text, seconds in (("5", 5), ("5s", 5), ("2m", 120), ("1.5h", 5400), ("500ms", 0.5)):
        assert Seconds().convert(text, None, None) == seconds
    for wrong in ("", "s", "-1", "0", "5x", "nan", "1 2"):
        with pytest.raises(click.BadParameter, match="write 5, 5s, 2m or 1h"):
            Seconds().convert(wrong, None, None)


def test_a_document_goes_to_stdout_and_to_a_file_in_the_form_of_its_suffix(call, tmp_path):
    for words, file, text in (
        ("plan show shm", "x.csv", "shm_oneshot"),
        ("plan show shm", "x.txt", "all_reduce"),
        ("plan explain all_reduce --plan shm", "x.md", "shm_twoshot"),
    ):
        code, out, _ = call(*words.split(), "--json", "-o", file)
        assert json.loads(out)["schema"].startswith("commlib.plan.")
        assert (code, text in (tmp_path / file).read_text(encoding="utf-8")) == (0, True), words


def test_colours_are_of_terminals_that_want_them(monkeypatch):
    command = click.Command("test", callback=lambda: click.echo(click.style("ok", fg="green")))
    monkeypatch.setattr(type(main), "get_command", lambda self, ctx, name: command)
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda stream, color: color is False)
    for no_color, styled in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        assert ("\x1b[" in CliRunner().invoke(main, ["test"], color=True).output) == styled


def test_a_shell_completes_names(monkeypatch, capsys):
    for name, value in (("COMP_WORDS", "commlib de"), ("COMP_CWORD", "1"), ("_COMMLIB_COMPLETE", "bash_complete")):
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main(prog_name="commlib")
    assert capsys.readouterr().out == "plain,debug\n"


def test_a_reader_that_goes_away_is_no_error():
    script = f"{sys.executable} -m commlib plan show | true"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
MPIEXEC = {"PMI_RANK": "0", "PMI_SIZE": "2"}
SRUN = dict.fromkeys(("SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"), "1")


def test_two_launchers_at_once_are_refused(monkeypatch, capsys):
    launchers = {
        "torchrun": {**TORCHRUN, "TORCHELASTIC_RUN_ID": "x"},
        "mpiexec": MPIEXEC,
        "srun": {**SRUN, "SLURM_STEP_NUM_TASKS": "2"},
    }
    commands = (["bench", "barrier"], ["tune", "barrier"], ["bench", "barrier", "--phases"])
    for words, (launcher, environ) in zip(commands, launchers.items(), strict=True):
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            assert exit_code(*words, "-n", "3") == 2
        said = capsys.readouterr().err
        assert f"-n 3 would start a job in each of the 2 processes that {launcher} started: leave out -n" in said
        assert f"{launcher}, to start 3 here; COMMLIB_BOOTSTRAP=torchrun starts all jobs" in said


def test_ranks_are_started_where_one_process_asks_for_them(monkeypatch):
    started = []
    monkeypatch.setattr("commlib.tools.launch.launch", lambda words, ranks, **_: started.append(ranks) or 0)
    one_process, half_set, asked = {**MPIEXEC, "PMI_SIZE": "1"}, {"PMI_RANK": "0"}, {"COMMLIB_BOOTSTRAP": "torchrun"}
    for environ in ({}, TORCHRUN, one_process, half_set, {**MPIEXEC, **asked}):
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            assert (exit_code("bench", "barrier", "-n", "2"), started.pop()) == (0, 2), environ


def test_build_says_what_is_wrong_before_it_compiles(monkeypatch):
    cases = (
        ("sm_90,sm90", "'sm90' is no architecture; write sm_90,sm_100"),
        ("sm_90 --dtype bf61", "no element type 'bf61'; did you mean bf16? there are float64, "),
    )
    refuses("build --arch", cases)
    monkeypatch.setenv("COMMLIB_CACHE_DIR", "/proc/none")
    refuses("build --arch", [("sm_90", "the cache /proc/none cannot be written: ")])


def test_the_version_is_the_installed_one(command):
    (script,) = entry_points(group="console_scripts", name="commlib")  # one: no other distribution has left its own
    assert commlib.__version__ == script.dist.version
    assert command("--version").stdout == f"commlib {commlib.__version__}\n"


MEASURING = {
    "bench barrier --backend shm --peers none -b 8 -e 4K --iters 1 --format table -o found.json": result.KIND,
    "bench index --dim 96 --rows 2,3 -o found.json": kernels.KIND,
    "bench attention --dim 32 --batch 1,2 --length 20 -o found.json": kernels.KIND,
    "bench radix --leaves 200 --json": kernels.KIND,
}


@pytest.mark.parametrize("command", MEASURING)
def test_ctrl_c_keeps_what_was_measured(command, call, tmp_path, monkeypatch):
    rows = Output.rows

    def interrupted(self, found):
        rows(self, found)
        raise KeyboardInterrupt

    monkeypatch.setattr(Output, "rows", interrupted)
    code, text, errors = call(*command.split(), "--time", "0.1")
    assert code == 130, errors
    found = written(tmp_path / "found.json" if "found.json" in command else text, MEASURING[command])
    assert (found["complete"], found["ended"], found["rows"] != []) == (False, "interrupted", True)
    assert "--json" in command or "interrupted: not complete" in text


REFUSED = {
    "": [
        ("bnech", "no command 'bnech'; did you mean bench? see"),
        ("plan shw", "no command 'shw'; did you mean show? see"),
        ("tune all_reduce --time inf", "finite"),
    ],
    "bench": [
        ("--ngpus=8", "a rank for each GPU: -n 8"),
        ("-o max", "-o is the file to write here; the reduction is --redop max"),
        ("--formt json", "no option --formt; did you mean --format? see"),
        ("allreduce", "; did you mean all_reduce?"),
    ],
    "bench -n 2": [
        ("--dtype float31", "no element type 'float31'; did you mean float32? there are float64, "),
        ("all_reduce --backend shm --algorithms nccl_direct", "there are all, auto, shm_oneshot, "),
        ("--peers gloo", "no peer 'gloo'; there are torch, mpi, nccl, symm"),
        (f"--peer {__file__}", "has no function make()"),
        ("-b 1M -e 1K", "less than -b"),
        ("--root 2", "--root 2 is no rank; the last one is 1"),
        ("all_reduce --redop band", "nothing to measure: band of float32 is not defined"),
    ],
    "bench index": [("--rows 0", "a number below 1 or above"), ("-o nowhere/report.json", "no folder nowhere")],
    "bench attention": [
        ("--heads 6 --kv-heads 4", "--heads 6 is no multiple of --kv-heads 4"),
        ("--length 1G", "above 16777216"),
    ],
    "bench --phases": [
        ("--algorithms shm_none", "no algorithm 'shm_none'; did you mean "),
        ("all_reduce barrier", "--phases looks at one call, and OP names 2"),
        ("-b 8 -e 64K", "--phases looks at one call, and --sizes names "),
        ("--graph", "--graph needs GPUs"),
        ("barrier --in-place in", "barrier has no in-place form"),
        ("broadcast -n 2 -r 2", "--root 2 is no rank; the last one is 1"),
        ("--plot x.png", "draws nothing; leave --plot out"),
    ],
    "profile": [("comm all_reduce", "was removed; `commlib bench index|store|metadata|attention|radix` measures")],
    "tune -n 2": [
        ("-b 1M -e 1K", "must be 1048576 or more, as -b"),
        ("-b 0 -e 0", "-e is 0 bytes, but must be 1 or more"),
        ("all_reduce --time 1s", "too short"),
    ],
    "plan": [
        ("explain all_reduse", "no collective 'all_reduse'; did you mean all_reduce? there are all_reduce, all_gather"),
        ("explain all_reduce --bytes big", "'big' is no list of numbers"),
        ("explain all_reduce --backend mpi", "no backend 'mpi'; there are nccl"),
        ("explain all_reduce --redop band", "on 2 ranks: there is no band of float32"),
        ("show absent.json", "no plan file 'absent.json'"),
        ("show shm", "plan shm: Expecting property name"),  # a file comes before the plan of that name
        ("threshold 8M", "`commlib plan threshold` was removed; write `Plan.threshold(…).file_text`"),
    ],
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_a_command_cannot_take_is_one_line(command, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shm").write_text("{")
    refuses(command, REFUSED[command])
