import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner

from commlib.tools.cli.run import run as run_command
from commlib.tools.launch import launch

ROOT = Path(__file__).parents[1]
PYTHON = [sys.executable, "-I", "-S", "-c"]  # starts in 10 ms
LAUNCHER = "import sys; from commlib.tools.launch import launch; sys.exit(launch(sys.argv[2:], int(sys.argv[1])))"
# A child with a child of its own, as a shell wrapper has; both say who they are.
FAMILY = "echo $$; sleep 60 & echo $!; wait"


def run(script, n=2, **options):
    """Run a Python or (with a leading '$') shell script on n ranks; return the code and sorted lines."""
    command = ["bash", "-c", script[1:]] if script.startswith("$") else [*PYTHON, script]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = launch(command, n, stdout=out, stderr=err, **options)
        said = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, err)]
    return code, sorted(said[0].splitlines()), said[1]


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait_until_gone(pids, limit_s=3.0):
    deadline = time.monotonic() + limit_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [pid for pid in pids if alive(pid)]


@contextlib.contextmanager
def launcher(n, *command, program=LAUNCHER, stderr=None):
    """A launcher in a process of its own, with the pids its ranks print."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(n), *command], env=environ, stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_pids(process, count):
    return [int(process.stdout.readline().split()[-1]) for _ in range(count)]


def test_every_rank_gets_its_own_variables_and_prefix(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # of a torchrun around us, which serves no store here
    monkeypatch.setenv("PMI_RANK", "0")  # of an mpiexec around us, which did not number them
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "TORCHELASTIC_USE_AGENT_STORE", "PMI_RANK")
    threads = max(1, len(os.sched_getaffinity(0)) // 3)
    code, out, err = run(f"import os; print(*map(os.environ.get, {names}))", 3)
    assert (code, out, err) == (0, [f"[{rank}] {rank} {rank} 3 {threads} None None" for rank in range(3)], "")


def test_lines_stay_whole_and_a_last_line_without_end_is_kept():
    script = (
        "import sys, time\nfor part in ('a', 'b\\n', 'c'): sys.stdout.write(part); sys.stdout.flush(); time.sleep(.02)"
    )
    assert run(script)[1] == ["[0] ab", "[0] c", "[1] ab", "[1] c"]


def test_all_that_a_larger_pipe_holds_at_the_end_is_passed_on():
    script = "import fcntl, os; fcntl.fcntl(1, 1031, 1 << 20); os.write(1, (b'x' * 99 + b'\\n') * 8000); os._exit(0)"
    assert len(run(script)[1]) == 2 * 8000


def test_without_prefix_the_output_is_the_ranks_own(tmp_path):
    with (tmp_path / "out").open("w+b") as out:
        assert launch([*PYTHON, "print('x')"], 2, prefix=False, stdout=out, stderr=out) == 0
        out.seek(0)
        assert out.read() == b"x\nx\n"


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("sys.exit(137)", 137, "rank 1 exited with code 137"),
        ("os.kill(os.getpid(), 40)", 168, "rank 1 was killed by signal 40"),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 was killed by SIGKILL"),
    ],
)
def test_the_first_failure_gives_the_code_and_ends_the_others(ending, code, said):
    script = f"import os, sys, time\nif os.environ['RANK'] == '1': {ending}\ntime.sleep(60)"
    assert run(script, 3)[0::2] == (code, f"commlib: {said}; ending the other ranks\n")


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(monkeypatch):
    monkeypatch.setattr("commlib.tools.launch.GRACE_S", 0.3)
    script = (
        "import os, signal, sys, time\nsignal.signal(15, signal.SIG_IGN); print('up')\n"
        "if os.environ['RANK'] == '0': time.sleep(.2); sys.exit(3)\ntime.sleep(60)"
    )
    assert run(script)[0] == 3


def test_children_of_a_rank_end_with_it_also_after_success():
    code, out, _ = run("$sleep 60 & echo $!")
    assert code == 0
    assert wait_until_gone([int(line.split()[1]) for line in out]) == []


def test_a_command_that_does_not_exist_is_127_and_one_that_may_not_run_126(tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    with (tmp_path / "err").open("wb") as err:
        assert launch(["no-such-command"], 2, stderr=err) == 127
        assert launch([str(plain)], 2, stderr=err) == 126
    absent, forbidden = (tmp_path / "err").read_text().splitlines()
    assert absent.startswith("commlib: cannot start 'no-such-command': ")
    assert forbidden.startswith(f"commlib: cannot start '{plain}': ")


def test_bind_core_gives_each_rank_a_core_and_this_process_keeps_its_own():
    before = os.sched_getaffinity(0)
    _, out, _ = run("import os; print(len(os.sched_getaffinity(0)), *os.sched_getaffinity(0))", bind="core")
    assert os.sched_getaffinity(0) == before
    cores = sorted(before)
    assert out == [f"[{rank}] 1 {cores[rank % len(cores)]}" for rank in range(2)]


def test_nothing_is_left_behind_in_this_process():
    def held():
        return len(os.listdir("/proc/self/fd")), signal.getsignal(signal.SIGINT)  # noqa: PTH208

    before = held()
    run("print()")
    run("import sys; sys.exit(1)")
    assert held() == before


def test_no_process_is_left_when_the_launcher_is_killed():
    with launcher(2, "bash", "-c", FAMILY) as process:
        pids = read_pids(process, 4)
        assert all(map(alive, pids))
        process.kill()
        assert wait_until_gone(pids) == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_reach_the_ranks_and_give_the_code(signum, code):
    script = (
        "import os, time\ntry: print(os.getpid(), flush=True); time.sleep(60)\nexcept KeyboardInterrupt: print('asked')"
    )
    with launcher(2, *PYTHON, script) as process:
        pids = read_pids(process, 2)
        process.send_signal(signum)
        output = process.communicate(timeout=3)[0]
        assert process.returncode == code
        assert output.count("asked") == (2 if signum == signal.SIGINT else 0)
        assert wait_until_gone(pids) == []


def test_a_job_that_sigterm_ends_says_what_each_rank_was_in(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import os, time, torch, commlib\n"
        "comm = commlib.init(backend='shm', max_bytes=1 << 20)\n"
        "comm.barrier()\n"
        "print(os.getpid(), flush=True)\n"
        "if comm.rank == 1:\n    time.sleep(60)\n"
        "comm.all_reduce(torch.ones(3))\n",
        encoding="utf-8",
    )
    with launcher(2, sys.executable, str(script), stderr=subprocess.PIPE) as process:
        read_pids(process, 2)
        time.sleep(1.0)
        process.terminate()
        lines = process.communicate(timeout=30)[1].splitlines()
    assert lines[0] == "commlib: SIGTERM ends the ranks"
    waits = "all_reduce #2 (float32, 3 elements, sum), for rank 1"
    assert f"commlib: rank 0 was in {waits}, at job.py:7 in <module>" in lines
    assert "commlib: rank 1 was in no call, at job.py:6 in <module>" in lines


FLOOD = "import os, sys; sys.stderr.write(f'{os.getpid()}\\n')\nwhile True: print('a line')"


def wait_until_full(pipe):
    """Wait until nothing more fits; a pipe is full with less than its size where its pages are not."""
    counts = [0, 0]
    while len(counts) < 50 and not 0 < counts[-2] == counts[-1]:
        time.sleep(0.2)
        counts.append(int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder))


@contextlib.contextmanager
def flooding(script, grace_s):
    """A launcher whose rank 0 has filled all pipes to a reader that does not read; with the pids of ranks 0 and 1."""
    patched = LAUNCHER.replace("sys.exit", f"import commlib.tools.launch as l; l.GRACE_S = {grace_s}; sys.exit")
    with launcher(2, *PYTHON, script, program=patched, stderr=subprocess.PIPE) as process:
        pids = [int(line.split()[1]) for line in sorted(process.stderr.readline() for _ in range(2))]
        wait_until_full(process.stdout)
        with Path(f"/proc/{pids[0]}/fd/1").open("rb") as pipe:  # of rank 0 to the launcher
            wait_until_full(pipe)
        yield process, pids


def test_a_signal_ends_a_job_whose_output_nobody_reads():
    with flooding(FLOOD, 0.5) as (process, pids):
        process.terminate()
        assert process.wait(5) == 143
        assert wait_until_gone(pids) == []


def test_a_rank_that_fails_ends_the_others_also_while_nobody_reads_and_the_lines_come_later():
    fails = "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))\n"
    script = fails + FLOOD.replace("True", "os.environ['RANK'] == '0'") + "\nsignal.pause()"
    with flooding(script, 5) as (process, pids):
        os.kill(pids[1], signal.SIGUSR1)
        assert wait_until_gone(pids) == []
        assert process.poll() is None
        lines = process.communicate(timeout=5)[0].splitlines()
        assert process.returncode == 3 and len(lines) > 10_000 and set(lines) == {"[0] a line"}


def test_every_line_arrives_whole_where_both_outputs_are_one_slow_pipe():
    script = "import sys\nfor _ in range(20_000): print('out' * 9); print('err' * 9, file=sys.stderr)"
    with launcher(2, *PYTHON, script, stderr=subprocess.STDOUT) as process:
        time.sleep(0.5)
        lines = Counter(line.split()[1] for line in process.communicate(timeout=20)[0].splitlines())
    assert lines == {"out" * 9: 40_000, "err" * 9: 40_000}


def test_the_second_ctrl_c_kills():
    script = "import os, signal, time\nsignal.signal(2, signal.SIG_IGN)\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    with launcher(1, *PYTHON, script) as process:
        pids = read_pids(process, 1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert alive(pids[0])
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=3)
        assert process.returncode == 130
        assert wait_until_gone(pids) == []


def test_the_command_is_passed_on_whole_and_a_file_or_a_module_of_python_is_run_by_this_python(monkeypatch):
    calls = []
    monkeypatch.setattr("commlib.tools.launch.launch", lambda *args, **options: calls.append((args, options)) or 5)
    for words, started in (
        (["a/b.py", "-n", "9"], [sys.executable, "a/b.py", "-n", "9"]),
        (["-m", "a.b", "-m", "c"], [sys.executable, "-m", "a.b", "-m", "c"]),
        (["./a.sh", "b.py", "--help"], ["./a.sh", "b.py", "--help"]),
    ):
        assert CliRunner().invoke(run_command, ["-n", "3", "--bind", "core", "--no-prefix", *words]).exit_code == 5
        assert calls.pop() == ((started, 3), {"prefix": False, "bind": "core"})


def test_what_stands_beside_this_python_comes_first_on_a_rank_s_path(monkeypatch):
    beside = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", f"/usr/bin:{beside}:/bin")
    assert run("$echo $PATH; command -v python", 1)[1] == sorted(
        [f"[0] {beside}:/usr/bin:/bin", f"[0] {beside}/python"]
    )


def test_rank_0_reads_what_is_piped_in_and_the_others_nothing():
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, "2", *PYTHON, "import sys; print(sys.stdin.read())"],
        cwd=ROOT,
        input="hello",
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(done.stdout.splitlines()) == ["[0] hello", "[1] "]


@pytest.mark.parametrize(
    ("script", "n", "hosts"),
    [*product(["mpirun", "torchrun"], ["0", "-1", "x", "", "2 2"], [None]), ("torchrun", "1", "x")],
)
def test_a_script_of_launch_refuses_what_is_no_number_of_ranks_or_hosts(script, n, hosts):
    environ = os.environ if hosts is None else {**os.environ, "NNODES": hosts}
    done = subprocess.run([f"launch/{script}.sh", n, "true"], cwd=ROOT, capture_output=True, env=environ, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert (b"usage: launch/" if hosts is None else b"NNODES=x") in done.stderr
