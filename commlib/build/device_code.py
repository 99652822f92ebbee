"""GPU kernels: csrc/*.cu → cubin by NVRTC or nvcc, when they are first needed; the only importer of the compilers."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from commlib.build.cache import COMPILER_S, build_cached
from commlib.build.sources import csrc, files_of, include_folders
from commlib.errors import BuildFailed, first_line

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


# The compilers


@cache
def compiler() -> Compiler:
    """Return NVRTC, or nvcc where it is missing."""
    reasons = []
    for find in (_find_nvrtc, _find_nvcc):
        try:
            return find()
        except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
            reasons.append(first_line(error))
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


# Names of kernels in C++: which instance of an algorithm's kernel serves a call

MAX_WORLD = 8  # kMaxPeers of csrc/include/commlib/job.h

# torch name → element type of a kernel. Complex numbers are added as pairs; native code asks for the
# reduction of bytes that does what a reduction of bools means.
ELEMENTS: dict[str, str] = {
    "float64": "double",
    "float32": "float",
    "float16": "commlib::half",
    "bfloat16": "commlib::bfloat16",
    "float8_e4m3fn": "commlib::e4m3",
    "float8_e5m2": "commlib::e5m2",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
    "bool": "unsigned char",
    "complex64": "float",
    "complex128": "double",
}


QUANTS = ("none", "fp8", "fp8_token", "fp8_group")  # by their codes in csrc/device/rms_norm.cuh


def row_expression(algorithm: str, dtype: str, form: str) -> str:
    """Return the instance of a kernel that ends with an epilogue; csrc/nccl/kernels.cc writes the form."""
    fields = dict(field.split("=") for field in form.split())
    if "epilogue" in fields:
        types = ", ".join(ELEMENTS[name] for name in fields["types"].split(",") if name)
        end = f"commlib::{fields['epilogue']}<{types}>"
    else:
        center = "true" if fields["center"] == "yes" else "false"
        end = f"commlib::RmsNorm<{ELEMENTS[fields['weight']]}, {center}, {QUANTS.index(fields['quant'])}>"
    return f"commlib::{algorithm}<{ELEMENTS[dtype]}, {end}, {fields['world']}, {fields['pairs']}>"


def expression(algorithm: str, world: int, dtype: str = "", redop: str = "") -> str:
    """Return the instance of a kernel that serves a call; moves, without type and reduction, have one for all."""
    if not dtype:
        return f"commlib::{algorithm}<{world}>"
    # A sum of bools is another reduction of bytes, so it is chosen at run time.
    op = "Sum" if redop == "sum" and dtype != "bool" else "AnyOp"
    return f"commlib::{algorithm}<{ELEMENTS[dtype]}, commlib::{op}, {world}>"
