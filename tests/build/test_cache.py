"""Device code at run time: what the cache stores, what it notices, and what an error shows. No GPU needed."""

import logging
import os
import shlex
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from commlib import env
from commlib.build import cache, device_code
from commlib.errors import BuildFailed
from commlib.tools.cli.doctor import checks
from commlib.tools.cli.doctor.checks import Check
from tests.bootstrap.processes import NOBODY, needs_root

KERNEL = """#include "factor.cuh"
namespace commlib {
struct Job { int* out; };
template <int N>
__global__ void scale(const __grid_constant__ Job job, int) { job.out[threadIdx.x] *= N * FACTOR; }
}  // namespace commlib
"""
REPORT = """Compiling entry function '_Zscale' for 'sm_90'
 16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
 Used 18 registers, used 0 barriers
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv(env.CACHE_DIR.name, str(tmp_path / "cache"))
    (tmp_path / "factor.cuh").write_text("#define FACTOR 3\n")
    path = tmp_path / "scale.cu"
    path.write_text(KERNEL)
    return path


@pytest.fixture
def compiled(monkeypatch):
    """A compiler that takes note of its calls; what it returns differs from call to call."""
    calls = []

    def run(text, options):
        calls.append((text, options))
        return b"\x7fELF\0" + bytes([len(calls)]), REPORT

    monkeypatch.setattr(device_code, "compiler", lambda: device_code.Compiler("fake 1.0", run))
    return calls


def test_parts_that_make_the_same_bytes_are_not_the_same(source):
    for parts in ([b"ab", b"c"], [b"a", b"bc"]):
        assert not cache.build_cached("cubin", parts, lambda: b"made")[1]


def scale(source, factor=2, arch="sm_90"):
    return device_code.compile_kernel(source, f"commlib::scale<{factor}>", arch)


def entries(source):
    return list((source.parent / "cache").iterdir())


def test_a_kernel_is_compiled_once(source, compiled):
    first, again = scale(source), scale(source)
    assert first == again and len(compiled) == 1
    assert (first.cached, again.cached) == (False, True)
    assert [path.suffix for path in entries(source)] == [".kernel"], "nothing but the entry is left"


def test_threads_that_need_the_same_entry_build_it_once(source):
    calls = []

    def build():
        calls.append(1)
        time.sleep(0.2)
        return b"content"

    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: cache.build_cached("test", [b"part"], build), range(4)))
    assert len(calls) == 1
    assert {content for content, _ in built} == {b"content"}
    assert [path.suffix for path in entries(source)] == [".test"], "no lock is left"


def test_a_build_that_fails_leaves_nothing_and_is_tried_again(source):
    def fail():
        raise BuildFailed("no")

    for _ in range(2):
        with pytest.raises(BuildFailed, match="no"):
            cache.build_cached("test", [b"part"], fail)
    assert entries(source) == []


def test_what_the_kernel_takes_is_read_from_the_log(source, compiled):
    kernel = scale(source)
    assert (kernel.symbol, kernel.registers, kernel.spill_bytes, kernel.stack_bytes) == ("_Zscale", 18, 12, 16)


def test_expression_and_architecture_and_compiler_are_part_of_the_key(source, compiled, monkeypatch):
    scale(source), scale(source, factor=3), scale(source, arch="sm_80")
    assert len(compiled) == 3
    newer = device_code.compiler()._replace(name="fake 1.1")
    monkeypatch.setattr(device_code, "compiler", lambda: newer)
    scale(source)
    assert len(compiled) == 4


def test_what_is_given_besides_the_file_is_compiled_and_part_of_the_key(source, compiled):
    for more in ("struct A {};\n", "struct B {};\n", "struct A {};\n"):
        device_code.compile_kernel(source, "commlib::scale<A>", "sm_90", more)
    assert len(compiled) == 2
    (first, _), _ = compiled
    assert first.splitlines()[1:] == ["struct A {};", "static_assert(&commlib::scale<A> != nullptr);"]


def test_a_changed_header_is_noticed_whatever_its_time(source, compiled):
    header = source.with_name("factor.cuh")
    times = header.stat().st_atime_ns, header.stat().st_mtime_ns
    scale(source)
    header.write_text('#include "deeper.cuh"\n')
    source.with_name("deeper.cuh").write_text("#define FACTOR 4\n")
    os.utime(header, ns=times)
    scale(source)
    source.with_name("deeper.cuh").write_text("#define FACTOR 5\n")
    scale(source)
    assert len(compiled) == 3


def test_the_same_content_elsewhere_is_the_same_kernel(source, compiled):
    scale(source)
    moved = shutil.copytree(source.parent, source.parent / "moved", ignore=shutil.ignore_patterns("cache"))
    assert scale(moved / "scale.cu").cached


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:10], lambda b: b"", lambda b: b[:-1] + b"?"])
def test_a_damaged_entry_is_compiled_again(source, compiled, damage):
    scale(source)
    (entry,) = entries(source)
    entry.write_bytes(damage(entry.read_bytes()))
    assert scale(source).code.endswith(b"\2") and len(compiled) == 2
    assert scale(source).cached


def test_entries_are_the_owners_alone(source, compiled):
    scale(source)
    (entry,) = entries(source)
    assert (entry.stat().st_mode & 0o777, entry.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_cache_that_cannot_be_written_costs_the_caching_only(source, compiled, caplog):
    cache._warn.cache_clear()
    (source.parent / "cache").write_text("a file, so no folder of that name can be made")
    with caplog.at_level(logging.WARNING, logger="commlib"):
        assert not scale(source).cached and not scale(source).cached
    (warning,) = caplog.messages
    assert str(source.parent / "cache") in warning and env.CACHE_DIR.name in warning


SPOILT = {
    "written by others": lambda path: path.chmod(path.stat().st_mode | (0o020 if path.is_dir() else 0o002)),
    "a link": lambda path: path.symlink_to(path.rename(path.with_name("elsewhere"))),
    "given away": lambda path: os.chown(path, NOBODY, -1),
}


@pytest.mark.parametrize(
    ("spoilt", "folder"),
    [
        ("written by others", True),
        ("written by others", False),
        ("a link", False),
        pytest.param("given away", True, marks=needs_root),
        pytest.param("given away", False, marks=needs_root),
    ],
)
def test_what_others_may_have_written_is_not_loaded(source, compiled, spoilt, folder):
    scale(source)
    (entry,) = entries(source)
    SPOILT[spoilt](entry.parent if folder else entry)
    assert not scale(source).cached and len(compiled) == 2
    (found,) = Check("cache", checks.cache).findings("shm")
    assert found.state == ("broken" if folder else "ok")
    assert not folder or "other users may write to it" in found.detail or "another user (number" in found.detail


def test_the_cache_follows_xdg_unless_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(env.CACHE_DIR.name, raising=False)
    assert cache.cache_dir() == tmp_path / "commlib"
    monkeypatch.setenv(env.CACHE_DIR.name, str(tmp_path / "named"))
    assert cache.cache_dir() == tmp_path / "named"


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(BuildFailed, match=r"(?s)cuda.bindings.*nvcc.*pip install"):
        device_code.compiler.__wrapped__()


@pytest.mark.parametrize("find", [device_code._find_nvrtc, device_code._find_nvcc])
def test_both_compilers_make_the_same_kernel(source, monkeypatch, find):
    try:
        tool = find()
    except (ImportError, FileNotFoundError) as error:
        pytest.skip(str(error))
    monkeypatch.setattr(device_code, "compiler", lambda: tool)
    kernel = scale(source)
    assert kernel.code.startswith(b"\x7fELF") and kernel.symbol.encode() in kernel.code
    assert kernel.symbol == "_ZN7commlib5scaleILi2EEEvNS_3JobEi"
    assert kernel.registers > 0 and kernel.spill_bytes == kernel.stack_bytes == 0

    source.write_text(KERNEL.replace("threadIdx.x", "nothing"))
    with pytest.raises(BuildFailed) as caught:
        scale(source, factor=7)
    for word in ("scale.cu", "commlib::scale<7>", "sm_90", '"nothing" is undefined'):
        assert word in str(caught.value)


def test_the_command_of_an_error_repeats_it(source):
    pytest.importorskip("cuda.bindings.nvrtc")
    with pytest.raises(BuildFailed) as caught:
        device_code.compile_kernel(source, "commlib::scale<Wrong>", "sm_90", "struct Wrong { it's };\n")
    _, command = str(caught.value).split("to repeat it: ")
    program, flag, code = shlex.split(command)
    assert (program, flag) == ("python", "-c")
    with pytest.raises(BuildFailed) as repeated:
        exec(code, {})
    assert str(repeated.value) == str(caught.value)
