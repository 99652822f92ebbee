"""Device code at run time: csrc/*.cu → cubin, in a content-addressed cache; the only importer of the compiler APIs."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory, TemporaryFile
from typing import IO, Any, NamedTuple

from commlib import env
from commlib.errors import BuildFailed
from commlib.users import opened_own

# Understood by NVRTC and nvcc alike. Contraction would round a*b+c once where the CPU kernels round twice.
OPTIONS = ("--std=c++17", "--fmad=false", "--ptxas-options=-v")
MARKED = "--define-macro=COMMLIB_MARKS"
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
_CHECKSUM_BYTES = 32
_TRIED_BYTES = 1 << 16
_NVRTC_CACHES = (12, 9)  # from this version on
_NVCC_S = 300.0  # a kernel takes seconds


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
        more: What the expression names and the file does not have.
        marked: Whether it says when its blocks turn to another phase (csrc/device/marks.cuh).
    """
    root = csrc()
    path = root / source
    if not path.is_file():
        raise BuildFailed(f"there is no {path}; reinstall commlib, or run `make setup`")
    tool = compiler()
    chosen = [*OPTIONS, *([MARKED] if marked else [])]
    place = entry(key(path, root, [tool.name, arch, expression, more, *chosen]), "kernel")
    kernel = _load(place) if place else None
    if kernel is not None:
        return kernel
    # Taking its address instantiates a kernel, whatever its parameters are.
    text = f'#include "{path}"\n{more}static_assert(&{expression} != nullptr);\n'
    includes = [f"--include-path={folder}" for folder in include_folders(root)]
    code, log = tool.run(text, [*chosen, f"--gpu-architecture={arch}", *includes])
    if not code:
        raise BuildFailed(f"{tool.name} cannot compile {expression} of {source} for {arch}:\n{log}")
    kernel = _kernel(code, log)
    if place:
        _save(place, kernel)
    return kernel


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


def csrc() -> Path:
    """Return the folder of the native sources: the checkout's, or else the one installed with the package."""
    package = Path(__file__).resolve().parent
    for folder in (package.parent / "csrc", package / "csrc"):
        if (folder / "include" / "commlib" / "job.h").is_file():
            return folder
    raise BuildFailed(f"the sources of the kernels are not beside {package}; reinstall commlib, or run `make setup`")


def include_folders(root: Path) -> tuple[Path, Path]:
    """Return where the headers of native sources are looked for."""
    return root, root / "include"


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
    # What comes out of its own cache comes without the report of ptxas.
    own = ("--no-cache",) if (major, minor) >= _NVRTC_CACHES else ()
    return Compiler(f"NVRTC {major}.{minor}", partial(_run_nvrtc, nvrtc, own))


def _run_nvrtc(nvrtc: Any, own: tuple[str, ...], text: str, options: list[str]) -> tuple[bytes, str]:
    def call(function: Any, *arguments: Any) -> Any:
        result, *values = function(*arguments)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildFailed(f"{function.__name__}: {result.name}")
        return values[0] if values else None

    def read(size: Any, get: Any) -> bytes:
        content = bytearray(call(size, program))
        call(get, program, content)
        return bytes(content)

    # Headers are looked for beside the program too: without a folder that would be the current directory.
    name = str(csrc() / "kernel.cu")
    program = call(nvrtc.nvrtcCreateProgram, text.encode(), name.encode(), 0, [], [])
    try:
        words = [option.encode() for option in (*options, *own)]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
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
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    version = re.search(r"\bV([\d.]+)", said)
    return Compiler(f"nvcc {version[1] if version else said}", partial(_run_nvcc, nvcc))


def _run_nvcc(nvcc: str, text: str, options: list[str]) -> tuple[bytes, str]:
    with TemporaryDirectory(prefix="commlib-") as folder:
        source, target = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        source.write_text(text, encoding="utf-8")
        command = [nvcc, *options, "--cubin", f"--output-file={target}", str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_NVCC_S)
        except subprocess.TimeoutExpired:
            return b"", f"nvcc did not finish within {_NVCC_S:g} s"
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


# The cache: one file for each kernel, named by the digest of everything that its code depends on.


def cache_dir() -> Path:
    """Return where compiled kernels are kept."""
    home = env.foreign("XDG_CACHE_HOME")
    if home and not env.CACHE_DIR.is_set():
        return Path(home) / "commlib"
    return Path(env.CACHE_DIR.get()).expanduser()


def try_cache(folder: Path) -> None:
    """Write into the cache; an OSError says why that fails."""
    with _opened_folder(folder) as room, TemporaryFile(dir=room) as file:
        file.write(bytes(_TRIED_BYTES))  # a full disk takes a file without content
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _opened_folder(folder: Path) -> Iterator[Path]:
    """Yield a way into a folder that is still this user's when somebody puts another in its place."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with opened_own(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        yield Path(f"/proc/self/fd/{fd}")


def entry(digest: str, kind: str) -> Path | None:
    """Return the place of a compiled file in the cache, None for a user without a home."""
    try:
        return cache_dir() / f"{digest}.{kind}"
    except RuntimeError as error:  # a user without a home
        _warn(str(error))
        return None


def key(path: Path, root: Path, words: list[str]) -> str:
    """Return the digest of a source, of all headers of ours below it, and of what else its code depends on."""
    digest = sha256()
    for part in (*(word.encode() for word in words), *_contents(path, root, set())):
        digest.update(b"%d:" % len(part) + part)
    return digest.hexdigest()


def _contents(path: Path, root: Path, seen: set[Path]) -> Iterator[bytes]:
    """Yield the text of a file and of all headers of ours below it; never their paths."""
    seen.add(path)
    text = path.read_bytes()
    yield text
    for name in _INCLUDE.findall(text):
        for folder in (path.parent, *include_folders(root)):
            header = (folder / name.decode()).resolve()
            if header.is_file():
                if header not in seen:
                    yield from _contents(header, root, seen)
                break


@contextmanager
def open_entry(place: Path) -> Iterator[IO[bytes] | None]:
    """Open an entry that only this user, or root, can have written; None if there is none."""
    with ExitStack() as stack:
        file = None
        with suppress(OSError):
            folder = stack.enter_context(opened_own(place.parent, os.O_RDONLY | os.O_DIRECTORY))
            fd = stack.enter_context(opened_own(place.name, os.O_RDONLY | os.O_NOFOLLOW, folder))
            file = stack.enter_context(open(fd, "rb", closefd=False))
        yield file


def _load(place: Path) -> Kernel | None:
    """Return the kernel of an entry; None if there is none, or it is not what was written."""
    with open_entry(place) as file:
        content = file.read() if file else b""
    checksum, body = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    if sha256(body).digest() != checksum:
        return None
    log, _, code = body.partition(b"\0")
    return _kernel(code, log.decode(), cached=True)


def _save(place: Path, kernel: Kernel) -> None:
    body = kernel.log.replace("\0", "").encode() + b"\0" + kernel.code
    keep(place, sha256(body).digest() + body)


def keep(place: Path, content: bytes) -> bool:
    """Write an entry under another name first: readers, and ranks that compile the same, see all or nothing."""
    try:
        with _opened_folder(place.parent) as room, NamedTemporaryFile(dir=room, prefix=".", delete=False) as file:
            try:  # its mode is 0600
                file.write(content)
                file.flush()
                Path(file.name).replace(room / place.name)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        _warn(f"{error.strerror or error}: {place.parent}")
        return False
    return True


@cache
def _warn(reason: str) -> None:
    logging.getLogger("commlib").warning(
        "compiled code is not kept (%s): each process compiles them again; set %s", reason, env.CACHE_DIR.name
    )
