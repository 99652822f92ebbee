import re
import sys
import threading
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


def fake_nccl4py(release=(2, 28, 9), path="libc.so.6", version="0.6.0", communicator=FakeCommunicator):
    return SimpleNamespace(
        __version__=version,
        Communicator=communicator,
        UniqueId=SimpleNamespace(from_bytes=bytes),
        get_unique_id=lambda: b"unique",
        get_version=lambda: SimpleNamespace(
            libnccl=path and SimpleNamespace(version=SimpleNamespace(release=release), path=path)
        ),
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
    barrier, board, outcome = threading.Barrier(2), [b"", b""], [None, None]

    def run(rank):
        try:
            outcome[rank] = Control.create(Twin(rank, barrier, board), timeout_s)
        except CommError as error:
            outcome[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return outcome


def everything(symbol):
    return True


def on(version, has_symbol=everything):
    return {feature for feature, reason in capabilities(version, has_symbol).items() if not reason}


@pytest.mark.parametrize(
    "version, has, lacks",
    [
        (22203, {"split"}, {"shrink", "symmetric_windows", "revoke"}),
        (22703, {"shrink", "symmetric_windows"}, {"peer_pointers", "revoke"}),
        (22803, {"peer_pointers"}, {"revoke", "symmetric_kernels"}),
        (22809, {"split", "shrink", "revoke", "symmetric_windows", "peer_pointers"}, {"grow", "symmetric_kernels"}),
        (22907, {"grow", "suspend", "properties"}, {"symmetric_kernels"}),
        (23007, set(FEATURES), set()),
    ],
)
def test_a_version_has_what_it_brought(use, version, has, lacks):
    use()
    assert has <= on(version)
    assert not lacks & on(version)


def test_a_missing_feature_says_what_it_needs(use):
    use()
    reasons = capabilities(22809, everything)
    assert reasons["symmetric_kernels"].startswith("needs NCCL 2.30.7, this is 2.28.9")
    assert "needs NCCL 2.29.7" in reasons["suspend"]


def test_a_missing_symbol_turns_one_feature_off(use):
    use()
    reasons = capabilities(23203, lambda symbol: symbol != "ncclCommRevoke")
    assert "ncclCommRevoke" in reasons.pop("revoke")
    assert not any(reasons.values())


@pytest.mark.parametrize("variable", ["NCCL_CUMEM_ENABLE", "NCCL_WIN_ENABLE"])
def test_a_variable_that_turns_windows_off_is_named(use, monkeypatch, variable):
    use()
    monkeypatch.setenv(variable, "0")
    off = {feature: reason for feature, reason in capabilities(23203, everything).items() if reason}
    assert set(off) == {"symmetric_windows", "peer_pointers", "symmetric_kernels"}
    assert all(f"{variable}=0" in reason for reason in off.values())
    monkeypatch.setenv(variable, "1")
    assert not any(capabilities(23203, everything).values())


def test_features_are_looked_up_in_the_loaded_library(use):
    use(path="libc.so.6")
    control = Control.create(SingleWorld(), 5)
    assert "was built without ncclCommSplit" in control.features()["split"]


def test_versions_read_as_people_write_them():
    assert [version_text(code) for code in (22809, 23007, 22304)] == ["2.28.9", "2.30.7", "2.23.4"]


def test_a_communicator_knows_its_rank_size_and_version(use):
    use()
    controls = on_both_ranks(5)
    assert [(c.ptr, c.rank, c.size, c.version, c.library) for c in controls] == [
        (0x1000, 0, 2, 22809, "libc.so.6"),
        (0x1001, 1, 2, 22809, "libc.so.6"),
    ]


def test_without_nccl4py_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "nccl.core", None)  # what a missing package looks like to import
    with pytest.raises(Unsupported, match=re.escape(REMEDY)):
        Control.create(SingleWorld(), 5)


@pytest.mark.parametrize(
    "kinds, complaint", [({"version": "0.4.1"}, "0.4.1 is too old"), ({"path": None}, "no libnccl.so.2")]
)
def test_an_installation_that_will_not_do_is_refused(use, kinds, complaint):
    use(**kinds)
    with pytest.raises(Unsupported, match=complaint):
        Control.create(SingleWorld(), 5)


def test_a_nonblocking_environment_is_refused(use, monkeypatch):
    use()
    monkeypatch.setenv("NCCL_COMM_BLOCKING", "0")
    with pytest.raises(Unsupported, match="NCCL_COMM_BLOCKING=0"):
        Control.create(SingleWorld(), 5)


def test_a_rank_that_hangs_is_named_on_all_ranks_and_the_others_end_theirs(use):
    made, release = [], threading.Event()

    class OneHangs(FakeCommunicator):
        @classmethod
        def init(cls, nranks, rank, unique_id):
            if rank == 1:
                release.wait(30)
            made.append(cls(0x1000, rank, nranks))
            return made[-1]

    use(communicator=OneHangs)
    errors = on_both_ranks(0.2)
    ended = made[0].calls
    release.set()
    assert [type(error) for error in errors] == [CommTimeout, CommTimeout]
    assert all("hung for 0.2 s on rank(s) 1 of 2" in str(error) for error in errors)
    assert ended == ["abort"]


def test_the_rank_that_failed_is_named_before_those_it_kept_waiting(use):
    release = threading.Event()

    class OneFails(FakeCommunicator):
        @classmethod
        def init(cls, nranks, rank, unique_id):
            if rank == 1:
                raise RuntimeError("unhandled cuda error")
            release.wait(30)

    use(communicator=OneFails)
    errors = on_both_ranks(0.2)
    release.set()
    assert [type(error) for error in errors] == [CommError, CommError]
    assert all(str(error) == "rank 1: ncclCommInitRank: unhandled cuda error" for error in errors)


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


def test_a_group_without_its_communicator_yet_is_refused(use):
    use()
    with pytest.raises(ValueError, match="device_id"):
        Control.adopt(group_with(0))


def test_what_holds_no_nccl_communicator_is_refused(use):
    use()
    with pytest.raises(Unsupported, match="does not give access to its NCCL communicator"):
        Control.adopt(SimpleNamespace(_get_backend=lambda device: object()))
    with pytest.raises(TypeError, match="torch process group"):
        Control.adopt("cuda:0")
