"""Arguments of init() and launchers' variables are checked before anything starts."""

from __future__ import annotations

import errno
from typing import Any
from unittest.mock import Mock

import pytest

import commlib
from commlib import bootstrap, env
from commlib.bootstrap import connect
from commlib.errors import CommError, Unsupported


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_bytes": -1}, "max_bytes=.*: expected 0 to"),
        ({"max_bytes": 10**400}, "max_bytes=.*: expected 0 to"),
        ({"timeout_s": float("inf")}, "timeout_s=.*: expected a number above 0"),
        ({"timeout_s": float("nan")}, "timeout_s=.*: expected a number above 0"),
        ({"timeout_s": 10**400}, "timeout_s=.*: expected a number above 0"),
        ({"timeout_s": 0}, "timeout_s=.*: expected a number above 0"),
        ({"timeout_s": "abc"}, "timeout_s=.*: expected a number above 0"),
        ({"checked": "maybe"}, "checked=.*: expected 0 or 1"),
        ({"max_sms": -1}, "max_sms=.*: expected a number of multiprocessors"),
        ({"max_sms": "all"}, "max_sms=.*: expected a number of multiprocessors"),
        ({"backend": "cuda"}, "backend='cuda' is not known"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_starts(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        commlib.init(bootstrap="nobody would be asked", **arguments)


@pytest.mark.parametrize(
    "arguments", [{"max_bytes": 1.5}, {"max_sms": 1.5}, {"timeout_s": [1]}, {"plan": 3}, {"backend": None}]
)
def test_an_argument_of_a_wrong_type_is_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(arguments))):
        commlib.init(bootstrap="nobody would be asked", **arguments)


def test_the_name_that_was_meant_is_suggested() -> None:
    with pytest.raises(TypeError, match=r"init\(\) has no argument 'timeout'; did you mean timeout_s\?"):
        commlib.init(timeout=5)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match=r"no attribute 'Radixcache'; did you mean RadixCache\?"):
        _ = commlib.Radixcache
    near = {"world_size": "size", "allreduce": "all_reduce", "all_gather": "all_gather_into_tensor", "ranks": "rank"}
    with commlib.init(backend="shm", bootstrap="single", max_bytes=0) as comm:
        for name, known in near.items():
            with pytest.raises(AttributeError, match=rf"has no attribute '{name}'; did you mean {known}\?"):
                getattr(comm, name)
        assert not hasattr(comm, "zzz")
        with pytest.raises(ValueError, match=r"did you mean all_reduce\?"):
            comm.explain("allreduce", 8)
    assert set(dir(commlib)) == set(commlib.__all__)


@pytest.mark.parametrize("text", ["inf", "1e400", "-1", "nan", "1" + "0" * 400])
def test_a_variable_out_of_range_is_a_value_error_that_names_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (env.MAX_BYTES, env.TIMEOUT_S):
        monkeypatch.setenv(variable.name, text)
        with pytest.raises(ValueError, match=variable.name):
            variable.get()


@pytest.mark.parametrize("port", ["65536", "0", "-1", "http"])
def test_a_port_that_is_none_is_refused(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="MASTER_PORT"):
        connect("torchrun", timeout_s=1)


@pytest.mark.parametrize("started", ["commlib", "srun"])
def test_a_rank_that_mpi_has_alone_is_no_job_of_one(started: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.mpi, "connect", lambda timeout_s: bootstrap.SingleWorld())
    monkeypatch.setattr(bootstrap.mpi, "detect", lambda environ: None)
    monkeypatch.setattr(bootstrap, "around", lambda: (started, 2))
    with pytest.raises(Unsupported, match=f"{started} started 2 ranks; .*`mpiexec -n N …`"):
        connect("mpi")


def test_a_limit_of_this_process_is_a_comm_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    monkeypatch.setattr("commlib.communicator.connect", failing)
    with pytest.raises(CommError, match=r"init\(\) ran into a limit: .*; raise `ulimit -n`"):
        commlib.init()
