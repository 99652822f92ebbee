"""The command line as a user meets it: quick, one-line errors, right exit codes."""

import subprocess
import sys

import click
import pytest

from commlib.cli import COMMANDS, main
from commlib.errors import CommTimeout
from tests.cli.calls import refuses


def commlib(*args, timeout=60, **options):
    command = [sys.executable, "-m", "commlib", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)


def every_command():
    """Return the words of each command and subcommand."""
    for name in sorted(COMMANDS):
        command = main.get_command(click.Context(main), name)
        yield (name,)
        if isinstance(command, click.Group):
            yield from ((name, sub) for sub in command.commands)


HELP = """
import sys
before = set(sys.modules)
from commlib.cli import main
main(["--help"], standalone_mode=False)
loaded = set(sys.modules) - before
ours = {name for name in loaded if name.partition(".")[0] not in {*sys.stdlib_module_names, "click"}}
print("LOADED", *sorted(ours), "subprocess" in loaded)
"""


def test_help_loads_and_starts_nothing_that_takes_time():
    """Its time is Python's own start, click, and four small modules: no test under load can measure it better."""
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    loaded = done.stdout.partition("LOADED ")[2].split()
    assert loaded == ["commlib", "commlib.cli", "commlib.env", "commlib.errors", "False"]


def test_importing_the_command_line_loads_nothing_heavy():
    modules = ["cli", *(f"cli.{name}" for name in COMMANDS), "cli.bench.show", "cli.bench.compare", "bench.plot"]
    heavy = "{'torch', 'commlib._native', 'numpy', 'mpi4py', 'matplotlib', 'rich'}"
    names = ", ".join(f"commlib.{module}" for module in modules)
    code = f"import sys, {names}; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_command_explains_itself():
    for words in every_command():
        with pytest.raises(SystemExit) as end:
            main([*words, "--help"])
        assert end.value.code == 0, words


def test_a_wrong_call_gives_one_line_and_exit_code_2(capsys):
    for words in ("nonsense", "--nonsense", "doctor --nonsense", "plan nonsense", "plan explain"):
        with pytest.raises(SystemExit) as end:
            main(words.split())
        said = capsys.readouterr()
        assert (end.value.code, said.out, said.err.count("\n")) == (2, "", 1), words
        assert said.err.startswith("commlib: ")


def test_an_error_is_one_line_and_its_kind_is_the_exit_code(monkeypatch, capsys):
    for error, code, line in [
        (ValueError("count is 3 on rank 0"), 2, "commlib: count is 3 on rank 0\n"),
        (CommTimeout("rank 1 did not come\nin 3 s"), 1, "commlib: rank 1 did not come in 3 s\n"),
        (FileNotFoundError(2, "No such file", "x.json"), 1, "commlib: [Errno 2] No such file: 'x.json'\n"),
        (OSError(28, "No space left"), 1, "commlib: cannot write: No space left; make room, or write elsewhere\n"),
        (OSError(24, "Too many files"), 1, "commlib: [Errno 24] Too many files; raise `ulimit -n`\n"),
        (KeyboardInterrupt(), 130, "commlib: interrupted\n"),
    ]:
        monkeypatch.setattr(type(main), "get_command", lambda self, ctx, name, error=error: raising(error))
        with pytest.raises(SystemExit) as end:
            main(["test"])
        assert end.value.code == code
        assert capsys.readouterr().err.lstrip("\n") == line


def raising(error):
    @click.command()
    def command():
        raise error

    return command


def test_a_traceback_is_shown_when_asked_for_and_a_wrong_wish_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("COMMLIB_TRACEBACK", "1")
    monkeypatch.setattr(type(main), "get_command", lambda self, ctx, name: raising(ValueError("why")))
    with pytest.raises(ValueError, match="why"):
        main(["test"])
    monkeypatch.setenv("COMMLIB_TRACEBACK", "7")
    monkeypatch.setattr(type(main), "get_command", lambda self, ctx, name: raising(ValueError("why")))
    with pytest.raises(SystemExit) as end:
        main(["test"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("commlib: COMMLIB_TRACEBACK='7': expected 0 or 1")


def test_a_stream_that_the_caller_or_a_reader_closed_is_no_error():
    for words in ("--version <&-", "--version >&-", "--version 2>&-", "plan show | true"):
        script = f"{sys.executable} -m commlib {words}"
        result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert (result.returncode, result.stderr) == (0, "")


def test_a_number_that_is_not_finite_is_refused():
    cases = ("bench all_reduce -f nan", "profile index --time inf", "tune all_reduce --time inf")
    refuses("", [(words, "finite") for words in cases])


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
MPIEXEC = {"PMI_RANK": "0", "PMI_SIZE": "2"}
SRUN = dict.fromkeys(("SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"), "1")


def test_two_launchers_at_once_are_refused(monkeypatch, capsys):
    launchers = {
        "torchrun": {**TORCHRUN, "TORCHELASTIC_RUN_ID": "x"},
        "mpiexec": MPIEXEC,
        "srun": {**SRUN, "SLURM_STEP_NUM_TASKS": "2"},
    }
    commands = (["bench", "barrier"], ["tune", "barrier"], ["profile", "comm", "barrier"])
    for words, (launcher, environ) in zip(commands, launchers.items(), strict=True):
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
            for name, value in environ.items():
                patch.setenv(name, value)
            main([*words, "-n", "3"])
        assert end.value.code == 2
        said = capsys.readouterr().err
        assert f"-n 3 would start a job in each of the 2 processes that {launcher} started: leave out -n" in said
        assert f"{launcher}, to start 3 here; COMMLIB_BOOTSTRAP=local starts all jobs" in said


def test_ranks_are_started_where_one_process_asks_for_them(monkeypatch):
    started = []
    monkeypatch.setattr("commlib.launch.launch", lambda words, ranks, **_: started.append(ranks) or 0)
    one_process, half_set, asked = {**MPIEXEC, "PMI_SIZE": "1"}, {"PMI_RANK": "0"}, {"COMMLIB_BOOTSTRAP": "local"}
    for environ in ({}, TORCHRUN, one_process, half_set, {**MPIEXEC, **asked}):
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
            for name, value in environ.items():
                patch.setenv(name, value)
            main(["bench", "barrier", "-n", "2"])
        assert (end.value.code, started.pop()) == (0, 2), environ


def test_build_says_what_is_wrong_before_it_compiles(monkeypatch, capsys):
    def said(*words):
        with pytest.raises(SystemExit) as end:
            main(["build", *words])
        assert end.value.code == 2
        return capsys.readouterr().err

    assert "'sm90' is no architecture; write sm_90,sm_100" in said("--arch", "sm_90,sm90")
    assert "no element type 'bf61'; there are float64, " in said("--arch", "sm_90", "--dtype", "bf61")
    monkeypatch.setenv("COMMLIB_CACHE_DIR", "/proc/none")
    assert "the cache /proc/none cannot be written: " in said("--arch", "sm_90")


def test_the_version_is_the_installed_one():
    from importlib.metadata import entry_points

    import commlib as package

    (script,) = entry_points(group="console_scripts", name="commlib")  # one: no other distribution has left its own
    assert package.__version__ == script.dist.version
    assert commlib("--version").stdout == f"commlib {package.__version__}\n"
