import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from commlib.backends.nccl_control import FEATURES, REMEDY, Control, capabilities, version_text
from commlib.bootstrap.world import SingleWorld, World
from commlib.errors import CommError, CommTimeout, Unsupported


class FakeCommunicator:
    def __init__(self, ptr=0, rank=0, nranks=1):
        self.ptr, self.rank, self.nranks = ptr, rank, nranks
        self.calls = []

    @classmethod
    def init(cls, nranks, rank, unique_id):
        assert unique_id == b"unique"
        return cls(0x1000 + rank, rank, nranks)

    def abort(self):
        self.calls.append("abort")

    def destroy(self):
        self.calls.append("destroy")


def fake_nccl4py(path="libc.so.6", version="0.6.0", communicator=FakeCommunicator):
    library = path and SimpleNamespace(version=SimpleNamespace(release=(2, 28, 9)), path=path)
    return SimpleNamespace(
        __version__=version,
        Communicator=communicator,
        UniqueId=SimpleNamespace(from_bytes=bytes),
        get_unique_id=lambda: b"unique",
        get_version=lambda: SimpleNamespace(libnccl=library),
    )


@pytest.fixture
def use(monkeypatch):
    for name in ("NCCL_CUMEM_ENABLE", "NCCL_WIN_ENABLE", "NCCL_COMM_BLOCKING"):
        monkeypatch.delenv(name, raising=False)

    def use(**kinds):
        core = fake_nccl4py(**kinds)
        monkeypatch.setitem(sys.modules, "nccl.core", core)
        return core

    return use


class Twin(World):
    """One of two ranks in threads of one process."""

    name = "twin"
    size = 2

    def __init__(self, rank, barrier, board):
        self.rank = self.local_rank = rank
        self._barrier, self._board = barrier, board

    def all_gather(self, data, timeout_s):
        self._board[self.rank] = data
        self._barrier.wait(30)
        replies = list(self._board)
        self._barrier.wait(30)
        return replies


def on_both_ranks(timeout_s):
    """What Control.create returns or raises on each of two ranks."""
    barrier, board = threading.Barrier(2), [b"", b""]

    def run(rank):
        try:
            return Control.create(Twin(rank, barrier, board), timeout_s)
        except CommError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, range(2)))


@pytest.mark.parametrize(
    ("version", "has", "lacks"),
    [
        (22203, set(), {"symmetric_windows"}),
        (22703, {"symmetric_windows"}, {"peer_pointers"}),
        (22809, {"symmetric_windows", "peer_pointers"}, {"symmetric_kernels"}),
        (23007, set(FEATURES), set()),
    ],
)
def test_a_version_has_what_it_brought(use, version, has, lacks):
    use()
    reasons = capabilities(version, bool)
    assert not any(reasons[feature] for feature in has)
    assert all(f", this is {version_text(version)}" in reasons[feature] for feature in lacks)


def test_a_missing_symbol_turns_features_off(use):
    use()
    assert all("ncclCommWindowRegister" in reason for reason in capabilities(23203, lambda symbol: False).values())


@pytest.mark.parametrize("variable", ["NCCL_CUMEM_ENABLE", "NCCL_WIN_ENABLE"])
def test_a_variable_that_turns_windows_off_is_named(use, monkeypatch, variable):
    use()
    monkeypatch.setenv(variable, "0")
    off = {feature: reason for feature, reason in capabilities(23203, bool).items() if reason}
    assert set(off) == {"symmetric_windows", "peer_pointers", "symmetric_kernels"}
    assert all(f"{variable}=0" in reason for reason in off.values())
    monkeypatch.setenv(variable, "1")
    assert not any(capabilities(23203, bool).values())


def test_features_are_looked_up_in_the_loaded_library(use):
    use(path="libc.so.6")
    control = Control.create(SingleWorld(), 5)
    assert "was built without ncclCommWindowRegister" in control.features()["symmetric_windows"]


def test_a_communicator_knows_its_rank_size_and_version(use):
    use()
    controls = on_both_ranks(5)
    for rank, control in enumerate(controls):
        assert (control.ptr, control.rank, control.size) == (0x1000 + rank, rank, 2)
        assert (control.version, control.library) == (22809, "libc.so.6")


def test_without_nccl4py_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "nccl.core", None)  # what a missing package looks like to import
    with pytest.raises(Unsupported, match=re.escape(REMEDY)):
        Control.create(SingleWorld(), 5)


def test_an_installation_or_environment_that_will_not_do_is_refused(use, monkeypatch):
    for kinds, complaint in (({"version": "0.4.1"}, "0.4.1 is too old"), ({"path": None}, "no libnccl.so.2")):
        use(**kinds)
        with pytest.raises(Unsupported, match=complaint):
            Control.create(SingleWorld(), 5)
    use()
    monkeypatch.setenv("NCCL_COMM_BLOCKING", "0")
    with pytest.raises(Unsupported, match="NCCL_COMM_BLOCKING=0"):
        Control.create(SingleWorld(), 5)


@pytest.mark.parametrize(
    ("fails", "kind", "told"),
    [
        (False, CommTimeout, "hung for 0.2 s on rank(s) 1 of 2"),
        (True, CommError, "rank 1: ncclCommInitRank: unhandled cuda error"),  # and not those it kept waiting
    ],
)
def test_a_rank_that_hangs_or_fails_is_named_on_all_ranks_and_the_others_end_theirs(use, fails, kind, told):
    made, release = [], threading.Event()

    class OneGoesWrong(FakeCommunicator):
        @classmethod
        def init(cls, nranks, rank, unique_id):
            if rank == 1 and fails:
                raise RuntimeError("unhandled cuda error")
            if rank == 1 or fails:
                release.wait(30)
            made.append(cls(0x1000, rank, nranks))
            return made[-1]

    use(communicator=OneGoesWrong)
    errors = on_both_ranks(0.2)
    ended = [each.calls for each in made]
    release.set()
    assert [type(error) for error in errors] == [kind] * 2
    assert all(told in str(error) for error in errors)
    assert ended == ([] if fails else [["abort"]])


def test_a_communicator_ends_once(use):
    use()
    communicator = FakeCommunicator(1)
    control = Control(communicator)
    assert control.destroy()
    assert control.abort()
    assert communicator.calls == ["destroy"]


def test_a_destroy_that_never_returns_is_left_behind(use, monkeypatch):
    monkeypatch.setattr("commlib.backends.nccl_control._END_S", 0.1)
    use()
    communicator, release = FakeCommunicator(1), threading.Event()
    communicator.destroy = lambda: release.wait(30)
    assert not Control(communicator).destroy()
    release.set()


def test_a_borrowed_communicator_is_never_ended(use):
    core = use()
    lent = FakeCommunicator(0x77)
    made = []
    core.Communicator = lambda pointer: made.append(FakeCommunicator(pointer)) or made[-1]
    for source in (0x77, lent, group_with(0x77)):
        control = Control.adopt(source)
        assert control.ptr == 0x77
        assert control.destroy()
        assert control.abort()
    assert [communicator.calls for communicator in made] == [[], [], []]


def group_with(pointer):
    return SimpleNamespace(_get_backend=lambda device: SimpleNamespace(_comm_ptr=lambda: pointer))


def test_what_holds_no_nccl_communicator_is_refused(use):
    use()
    for source, kind, words in (
        (group_with(0), ValueError, "device_id"),
        (SimpleNamespace(_get_backend=lambda device: object()), Unsupported, "access to its NCCL communicator"),
        ("cuda:0", TypeError, "torch process group"),
    ):
        with pytest.raises(kind, match=words):
            Control.adopt(source)
