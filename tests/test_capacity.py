"""How many ranks fit: what is refused before anything starts, with the number that fits; and what runs out later."""

import re
import resource
import threading
from unittest import mock

import pytest

from commlib.communicator import Communicator
from commlib.native import library
from commlib.tools import capacity
from commlib.tools.cli import main
from tests.errors_and_logs import message_of
from tests.on_ranks import on_ranks

MIB = 1 << 20


@pytest.mark.parametrize(
    ("words", "n"), [("bench all_reduce", 100_000), ("tune all_reduce", 1000), ("test", 1000), ("run", 1_000_000)]
)
def test_more_ranks_than_fit_are_refused_before_any_starts_with_the_number_that_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, n: int
) -> None:
    monkeypatch.setattr("commlib.tools.launch.launch", lambda *words, **options: pytest.fail("it started"))
    with pytest.raises(SystemExit) as end:
        main([*words.split(), "-n", str(n), *(["true"] if words == "run" else [])])
    message = capsys.readouterr().err
    assert end.value.code == 2
    assert f"-n {n} is more than fits here: {'a process may open ' if words == 'run' else ''}" in message
    assert re.search(r"; give -n \d+ or fewer", message)


def test_without_a_number_run_takes_a_rank_for_each_gpu_and_at_least_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpus, visible, ranks in ((4, "", 4), (4, "0,1,2", 3), (4, "-1", 2), (1, "", 2), (0, "0,1,2", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr(capacity.env, "hides_gpus", lambda visible=visible: visible == "-1")
        monkeypatch.setattr(capacity.Path, "glob", lambda self, pattern, gpus=gpus: iter(range(gpus)))
        assert capacity.default_ranks() == ranks


@pytest.mark.parametrize(
    ("cores", "said"), [({0, 1}, ""), ({0}, "commlib: 2 ranks share 1 core: timings are unreliable\n")]
)
def test_ranks_that_share_cores_are_told_of(monkeypatch, capsys, cores, said) -> None:
    monkeypatch.setattr("commlib.tools.launch.launch", lambda *words, **options: 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: cores)
    with pytest.raises(SystemExit) as end:
        main(["bench", "barrier", "-n", "2"])
    assert (end.value.code, capsys.readouterr().err) == (0, said)


def test_a_backend_allows_so_many_whatever_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "free_memory", lambda: 1 << 50)
    most = library.max_shm_ranks()
    capacity.check(most, "auto", lambda ranks: 0)
    with pytest.raises(ValueError, match=f"the shm backend serves {most} ranks at most; give -n {most} or fewer"):
        capacity.check(most + 1, "shm", lambda ranks: 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(
        ValueError, match="nccl needs a GPU for each rank, and there are 0; there is no room for even one rank"
    ):
        capacity.check(2, "nccl", lambda ranks: 0)


def test_what_ranks_allocate_counts_also_where_it_grows_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "free_memory", lambda: 8192 * MIB)
    with pytest.raises(ValueError, match=r"(\d+) would take \d+ MiB each, and 8192 MiB of memory are free") as refused:
        capacity.check(64, "torch", lambda ranks: 100 * MIB * ranks)
    most = int(str(refused.value).split("give -n ")[1].split()[0])
    assert 4 <= most <= 8  # 256 MiB and 400 to 800 of buffers
    capacity.check(most, "torch", lambda ranks: 100 * MIB * ranks)


@pytest.mark.parametrize(
    "names",
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
    ids=["v2", "v1"],
)
def test_the_memory_that_is_free_is_that_of_the_container(monkeypatch, tmp_path, names) -> None:
    most, used, cache = names
    (tmp_path / most).write_text(f"{100 * MIB}\n")
    (tmp_path / used).write_text(f"{60 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\n{cache} {20 * MIB}\n")
    monkeypatch.setattr(capacity, "groups", lambda name: iter([tmp_path] if name == "memory" else []))
    assert capacity.free_memory() == 60 * MIB
    (tmp_path / most).write_text("max\n")
    assert capacity.free_memory() > 60 * MIB


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@on_ranks(2)
def test_what_runs_out_is_named_with_its_limit(comm: Communicator) -> None:
    """Rank 1 may open no file, then start no thread; afterwards all is well."""
    late = comm.rank == 1
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3 if late else soft, hard))
    try:
        text = message_of(lambda: comm.split(0, -comm.rank))  # the last is the first
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert ("rank 1" if late else "split: rank 1 could not make its communicator") in text
    assert "ulimit -n" in text
    with comm.split(0, comm.rank) as part:  # type: ignore[union-attr]  # not None for a color
        if late:
            with mock.patch.object(threading.Thread, "start", no_thread):
                text = message_of(lambda: part.barrier(async_op=True))
            assert "barrier" in text
            assert "ulimit -u" in text
        part.barrier(async_op=True).wait()
