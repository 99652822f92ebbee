"""Live ranks, started once and shared by all tests of a session.

The process that only hands out tests loads this, too: what takes seconds, torch, is imported where it is used.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import commlib
from commlib import env

if TYPE_CHECKING:
    from commlib.communicator import Communicator
    from commlib.tools.testing import Ranks
    from tests.plugins import Run

ARENA_BYTES = 64 << 20

# A job of a script in the background ignores Ctrl-C, and so would the processes that tests send it to.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--base", metavar="COMMIT", help="also compile the kernels whose sources differ from this commit")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what the gate would read for nothing: modules that are slow as a whole, or need GPUs."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    import torch

    needs_gpus = "gpu" in collection_path.relative_to(Path(__file__).parent).parts and not torch.cuda.is_available()
    return needs_gpus or "\npytestmark = pytest.mark.slow" in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.getoption("numprocesses", None):
        check_budget(session.config, len(session.items))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    check_budget(node.config, len(ids))


def check_budget(config: pytest.Config, cases: int) -> None:
    """The whole gate has no more cases than its budget; a part of it, or more than it, is not counted."""
    option = config.option
    if config.args != ["tests"] or option.markexpr != "not slow" or option.keyword or not option.ignore:
        return
    project = (config.rootpath / "pyproject.toml").read_text(encoding="utf-8")
    (most,) = map(int, re.findall(r"^cases_of_the_gate = (\d+)", project, re.MULTILINE))
    if cases > most:
        raise pytest.UsageError(f"{cases} cases at the gate, but its budget in pyproject.toml is {most}")


@pytest.fixture(scope="session", autouse=True)
def no_plans_of_ones_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests and the ranks they start see the shipped plans, whatever `commlib tune` wrote on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session")
def shm_ranks() -> Iterator[Ranks]:
    from commlib.tools.testing import Ranks

    with Ranks(4, backend="shm", timeout_s=60.0, max_bytes=ARENA_BYTES, deadline_s=120.0) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def torch_ranks() -> Iterator[Ranks]:
    from commlib.tools.testing import Ranks

    with Ranks(4, backend="torch", timeout_s=60.0, deadline_s=120.0) as ranks:
        yield ranks


@pytest.fixture(params=["shm_ranks", "torch_ranks"])
def each_ranks(request: pytest.FixtureRequest) -> Ranks:
    """The ranks of either backend, one after the other."""
    ranks: Ranks = request.getfixturevalue(request.param)
    return ranks


@pytest.fixture
def comm() -> Iterator[Communicator]:
    """A communicator of this process alone."""
    with commlib.init(backend="shm", bootstrap="single", timeout_s=5.0, max_bytes=1 << 20) as made:
        yield made


@pytest.fixture(scope="session")
def quick_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A `python`, with a `commlib` beside it, whose processes have imported torch already: see forked.py."""
    from commlib.tools.testing.ranks import PRELOAD
    from tests import forked

    folder = tmp_path_factory.mktemp("bin")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, "pytest"])
    life, lifeline = context.Pipe(duplex=False)
    with socket.socket(socket.AF_UNIX) as listener, life:
        listener.bind(str(folder / "socket"))
        listener.listen()
        server = context.Process(target=forked.serve, args=(listener, life), daemon=True)
        server.start()
    with lifeline:
        yield forked.install(folder, str(folder / "socket"))
    server.join()


@pytest.fixture(scope="session")
def with_plugins(quick_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A command with COMMLIB_PLUGINS, where what plugins bring is compiled once for all tests."""
    folder = str(tmp_path_factory.mktemp("cache"))
    caches = {env.CACHE_DIR.name: folder, "TVM_FFI_CACHE_DIR": folder, "COLUMNS": "200"}

    def run(plugins: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, env.PLUGINS.name: plugins, **caches, **more}
        command = [str(quick_python) if word == "python" else word for word in ("python", *words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)

    return run
