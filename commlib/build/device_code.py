"""GPU kernels: csrc/*.cu → cubin by NVRTC or nvcc, when they are first needed; the only importer of the compilers."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from commlib.build.cache import COMPILER_S, build_cached
from commlib.build.sources import csrc, files_of, include_folders
from commlib.errors import BuildFailed

# Understood by NVRTC and nvcc alike. Contraction would round a*b+c once where the CPU kernels round twice.
OPTIONS = ("--std=c++17", "--fmad=false", "--ptxas-options=-v")
MARKED = "--define-macro=COMMLIB_MARKS"
_NVRTC_CACHES = (12, 9)  # from this version on


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel: the cubin, the kernel's name in it, and what it takes of a multiprocessor."""

    code: bytes
    symbol: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    log: str
    cached: bool = field(default=False, compare=False)


class Request(NamedTuple):
    """What to compile: the arguments of compile_kernel."""

    source: str
    expression: str
    arch: str
    more: str = ""
    marked: bool = False


class Compiler(NamedTuple):
    """A compiler with its version, and `run(text, options)`: its cubin, empty if it failed, and its log."""

    name: str
    run: Callable[[str, list[str]], tuple[bytes, str]]


def compile_kernel(source: str | Path, expression: str, arch: str, more: str = "", marked: bool = False) -> Kernel:
    """Return one instance of a kernel, such as "commlib::lsa_oneshot<float, commlib::Sum, 4>" for "sm_90".

    Args:
        source: The file, below csrc.
        expression: The kernel with its template arguments.
        arch: The GPU.
        more: What the expression names and the file does not define.
        marked: Whether it says when its blocks turn to another phase (csrc/device/marks.cuh).
    """
    root = csrc()
    path = root / source
    if not path.is_file():
        raise BuildFailed(f"there is no {path}; reinstall commlib, or run `make setup`")
    tool = compiler()
    options = [*OPTIONS, *([MARKED] if marked else [])]

    def build() -> bytes:
        # Taking its address instantiates a kernel, whatever its parameters are.
        text = f'#include "{path}"\n{more}static_assert(&{expression} != nullptr);\n'
        includes = [f"--include-path={folder}" for folder in include_folders(root)]
        code, log = tool.run(text, [*options, f"--gpu-architecture={arch}", *includes])
        if not code:
            again = f"compile_kernel({str(source)!r}, {expression!r}, {arch!r}, {more!r}, {marked})"
            raise BuildFailed(
                f"{tool.name} cannot compile {expression} of {source} for {arch}:\n{log}\nto repeat it: "
                f"python -c {shlex.quote(f'from commlib.build.device_code import compile_kernel; {again}')}"
            )
        _kernel(code, log)
        return log.replace("\0", "").encode() + b"\0" + code

    parts = [text.encode() for text in (tool.name, arch, expression, more, *options)]
    content, cached = build_cached("kernel", [*parts, *files_of(path, root).values()], build)
    log, _, code = content.partition(b"\0")
    return _kernel(code, log.decode(), cached)


def compile_many(requests: Iterable[Request], jobs: int) -> Iterator[tuple[Request, Kernel | BuildFailed]]:
    """Compile in `jobs` threads; yield each request, when it is done, with its kernel or what went wrong."""
    pool = ThreadPoolExecutor(jobs)
    try:
        futures = {pool.submit(compile_kernel, *request): request for request in requests}
        for future in as_completed(futures):
            error = future.exception()
            yield futures[future], error if isinstance(error, BuildFailed) else future.result()
    finally:
        pool.shutdown(cancel_futures=True)


# The compilers


@cache
def compiler() -> Compiler:
    """Return NVRTC, or nvcc where it is missing."""
    reasons = []
    for find in (_find_nvrtc, _find_nvcc):
        try:
            return find()
        except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
            reasons.append(str(error).partition("\n")[0])
    raise BuildFailed(
        f"there is no compiler for device code ({'; '.join(reasons)}); "
        "pip install cuda-bindings nvidia-cuda-nvrtc, or put nvcc on PATH"
    )


def _find_nvrtc() -> Compiler:
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    # What comes out of NVRTC's cache comes without the report of ptxas.
    no_cache = ("--no-cache",) if (major, minor) >= _NVRTC_CACHES else ()
    return Compiler(f"NVRTC {major}.{minor}", partial(_run_nvrtc, nvrtc, no_cache))


def _run_nvrtc(nvrtc: Any, no_cache: tuple[str, ...], text: str, options: list[str]) -> tuple[bytes, str]:
    def call(function: Any, *arguments: Any) -> Any:
        result, *values = function(*arguments)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildFailed(f"{function.__name__}: {result.name}")
        return values[0] if values else None

    def read(size: Any, get: Any) -> bytes:
        content = bytearray(call(size, program))
        call(get, program, content)
        return bytes(content)

    # Headers are looked for next to the program too: without a folder that would be the current directory.
    name = str(csrc() / "kernel.cu")
    program = call(nvrtc.nvrtcCreateProgram, text.encode(), name.encode(), 0, [], [])
    try:
        arguments = [option.encode() for option in (*options, *no_cache)]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
        log = read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode(errors="replace").strip("\0\n")
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return b"", log or result.name
        return read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _find_nvcc() -> Compiler:
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        raise FileNotFoundError("nvcc is neither on PATH nor in /usr/local/cuda/bin")
    output = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    version = re.search(r"\bV([\d.]+)", output)
    return Compiler(f"nvcc {version[1] if version else output}", partial(_run_nvcc, nvcc))


def _run_nvcc(nvcc: str, text: str, options: list[str]) -> tuple[bytes, str]:
    with TemporaryDirectory(prefix="commlib-") as folder:
        source, target = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        source.write_text(text, encoding="utf-8")
        command = [nvcc, *options, "--cubin", f"--output-file={target}", str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILER_S)
        except subprocess.TimeoutExpired:
            return b"", f"nvcc did not finish within {COMPILER_S:g} s"
        return (b"" if done.returncode else target.read_bytes()), (done.stderr + done.stdout).strip()


def _kernel(code: bytes, log: str, cached: bool = False) -> Kernel:
    """Read what ptxas -v reported; functions that were not inlined count as part of the kernel."""
    symbols = re.findall(r"Compiling entry function '(\S+)'", log)
    if len(symbols) != 1:
        raise BuildFailed(f"expected one kernel in the file, the compiler made {len(symbols)}:\n{log}")
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    stacks = re.findall(r"(\d+) bytes cumulative stack size", log)
    return Kernel(
        code=code,
        symbol=symbols[0],
        registers=max(map(int, re.findall(r"Used (\d+) registers", log)), default=0),
        spill_bytes=sum(int(stores) + int(loads) for _, stores, loads in frames),
        stack_bytes=max((int(size) for size in [*stacks, *(frame for frame, _, _ in frames)]), default=0),
        log=log,
        cached=cached,
    )
