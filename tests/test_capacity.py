"""How many ranks fit: what is refused before anything starts, with the number that fits; and what runs out later."""

import resource
import threading
from unittest import mock

import pytest
from click import UsageError

from commlib.communicator import Communicator
from commlib.native import library
from commlib.tools.cli import main, run
from tests.errors_and_logs import message_of
from tests.on_ranks import on_ranks

MIB = 1 << 20


@pytest.mark.parametrize(
    ("words", "n"), [("bench all_reduce", 100_000), ("tune all_reduce", 1000), ("test", 1000), ("run", 1_000_000)]
)
def test_more_ranks_than_fit_are_refused_before_any_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, n: int
) -> None:
    monkeypatch.setattr("commlib.tools.launch.launch", lambda *words, **options: pytest.fail("it started"))
    with pytest.raises(SystemExit) as end:
        main([*words.split(), "-n", str(n), *(["true"] if words == "run" else [])])
    assert end.value.code == 2
    assert str(n) in capsys.readouterr().err


def test_without_a_number_run_takes_a_rank_for_each_gpu_and_at_least_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpus, visible, expected in ((4, "", 4), (4, "0,1,2", 3), (4, "-1", 2), (1, "", 2), (0, "0,1,2", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr(run.env, "hides_gpus", lambda visible=visible: visible == "-1")
        monkeypatch.setattr(run.Path, "glob", lambda self, pattern, gpus=gpus: iter(range(gpus)))
        assert run.default_ranks() == expected


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
    monkeypatch.setattr(run, "free_memory", lambda: 1 << 50)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    most = library.max_shm_ranks()
    run.check_ranks(most, "auto", lambda ranks: 0)
    run.check_ranks(most + 1, "torch", lambda ranks: 0)
    for backend, served in (("shm", most), ("nccl", 0)):
        with pytest.raises(UsageError, match=f"backend {backend} serves {served} "):
            run.check_ranks(most + 1, backend, lambda ranks: 0)


def test_what_ranks_allocate_counts_also_where_it_grows_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "free_memory", lambda: 8192 * MIB)
    run.check_ranks(6, "torch", lambda ranks: 100 * MIB * ranks)  # 256 MiB and 600 of buffers
    with pytest.raises(UsageError, match=r"each takes \d+ MiB, and 8192 MiB of memory are free"):
        run.check_ranks(10, "torch", lambda ranks: 100 * MIB * ranks)
    monkeypatch.undo()
    assert run.free_memory() > MIB


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
            with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
                text = message_of(lambda: part.barrier(async_op=True))
            assert "barrier" in text
            assert "ulimit -u" in text
        part.barrier(async_op=True).wait()
