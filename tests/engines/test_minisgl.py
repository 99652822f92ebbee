"""mini-sglang: our functions of its names, and its own tests, from a checkout that MINISGL names."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from commlib.communicator import Communicator
from commlib.engines import minisgl
from tests.on_ranks import on_ranks

CHECKOUT = os.environ.get("MINISGL", "")
needs_checkout = pytest.mark.skipif(not CHECKOUT, reason="MINISGL names no checkout of mini-sglang")


def test_our_calls_stand_where_minisgl_looks_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = ModuleType("minisgl.kernel")
    monkeypatch.setitem(sys.modules, "minisgl", SimpleNamespace(kernel=kernel))
    monkeypatch.setitem(sys.modules, "minisgl.kernel", kernel)
    monkeypatch.setattr(minisgl, "install_cache", lambda: None)
    minisgl.install()
    for name in ("init_pynccl", "indexing", "store_cache", "fast_compare_key"):
        assert getattr(kernel, name) is getattr(minisgl, name)


def test_index_and_store_are_minisgls() -> None:
    table, ids = torch.randn(40, 8), torch.tensor([3, 39, 0, 11], dtype=torch.int32)
    assert torch.equal(minisgl.indexing(table, ids), table[ids])
    out = torch.empty(4, 8)
    assert minisgl.indexing(table[:20], ids, output=out, vocab_range=(10, 20)) is out
    assert torch.equal(out[3], table[1]) and out[0].eq(0).all() and out[1].eq(0).all()
    cache = torch.zeros(32, 2, 4, 2)
    rows = torch.randn(4, 4 * 8)
    k, v = rows[:, :8], rows[:, 8:16]
    minisgl.store_cache(cache[:, 0], cache[:, 1], torch.tensor([5, 0, 31, 7]), k, v)
    assert torch.equal(cache[5, 0].flatten(), k[0]) and torch.equal(cache[7, 1].flatten(), v[3])
    assert cache.count_nonzero() == 64


def test_compare_counts_equal_tokens_and_refuses_others() -> None:
    a, b = torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 9])
    assert minisgl.fast_compare_key(a, b) == 2
    with pytest.raises(ValueError, match="one type"):
        minisgl.fast_compare_key(a, b.int())
    with pytest.raises(ValueError, match="int32 or int64"):
        minisgl.fast_compare_key(a.float(), b.float())


@on_ranks()
def test_the_communicator_reduces_in_place(comm: Communicator) -> None:
    made = minisgl.Communicator.__new__(minisgl.Communicator)
    made.comm = comm
    x, whole = torch.full((6,), comm.rank + 1.0), torch.empty(6 * comm.size)
    made.all_gather(whole, x)
    assert whole.view(comm.size, 6)[:, 0].tolist() == [rank + 1.0 for rank in range(comm.size)]
    made.all_reduce(x, "sum")
    assert x.eq(comm.size * (comm.size + 1) / 2).all()
    with pytest.raises(NotImplementedError, match="no buffer"):
        made.get_buffer()


def run(folder: Path, *words: str) -> str:
    """Return what Python prints, which must end well, with mini-sglang to import."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(Path(CHECKOUT, "python")), *sys.path))}
    command = [sys.executable, *words]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_checkout
def test_its_own_test_of_the_prefix_cache_passes_on_ours(tmp_path: Path) -> None:
    source = Path(CHECKOUT, "tests/core/test_cache_allocate.py").read_text()
    assert source.count('type="radix"') == 1
    ours = "from commlib.engines.minisgl import install_cache\n\ninstall_cache()\n"
    (tmp_path / "test_cache.py").write_text(source.replace('type="radix"', 'type="commlib"'))
    (tmp_path / "conftest.py").write_text(ours)
    assert "6 passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))


@needs_checkout
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["test_comm.py", "test_index.py", "test_store.py"])
def test_its_own_tests_of_kernels_pass_on_ours(name: str, tmp_path: Path) -> None:
    """Their scripts as they are, but for the number of GPUs, in processes that call install() first."""
    gpus = torch.cuda.device_count()
    if name == "test_comm.py" and gpus < 2:
        pytest.skip("needs two GPUs")
    source = Path(CHECKOUT, "tests/kernel", name).read_text().replace("from __future__ import annotations", "")
    source = source.replace("tp_size = 4", f"tp_size = {min(gpus, 4)}")
    script = tmp_path / name
    script.write_text(f"from commlib.engines import minisgl\n\nminisgl.install()\n{source}")
    run(tmp_path, str(script))
