"""Host code at run time: the C++ half of a plugin, compiled once into the cache of device code, and loaded."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from commlib import __version__, env, jit
from commlib.errors import BuildFailed
from commlib.native import library

OPTIONS = ("-std=gnu++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-Wall")
COMPILER_S = 300.0  # a file takes seconds
_CHECKSUM_BYTES = 32


@cache
def load(source: Path) -> None:
    """Compile a C++ file, unless the cache has it, and load it: what it registers, the library has from then on."""
    entry = _entry(source)
    if entry is not None and _load_kept(entry, source):
        return
    with TemporaryDirectory(prefix="commlib-") as folder:
        made = Path(folder) / f"{source.stem}.so"
        _compile(source, made)
        with made.open("ab") as file:  # what follows a library's end is nobody's
            file.write(sha256(made.read_bytes()).digest())
        if entry is None or not jit.keep(entry, made.read_bytes()) or not _load_kept(entry, source):
            _open(made, source)


def _entry(source: Path) -> Path | None:
    _, version = compiler()
    return jit.entry(jit.key(source, headers(), [version, __version__, *OPTIONS]), "so")


def _load_kept(entry: Path, source: Path) -> bool:
    """Load the file that was checked, not what may stand in its place by now; False if there is none."""
    with jit.open_entry(entry) as file:
        content = file.read() if file else b""
        if file is None or sha256(content[:-_CHECKSUM_BYTES]).digest() != content[-_CHECKSUM_BYTES:]:
            return False
        # Never closed: the loader would take another file of that name for this one.
        _open(Path(f"/proc/self/fd/{os.dup(file.fileno())}"), source)
        return True


def _open(path: Path, source: Path) -> None:
    try:
        # Python loads the library for itself alone; a plugin must find its symbols.
        ctypes.CDLL(library.library_path(), mode=os.RTLD_NOLOAD | os.RTLD_GLOBAL | os.RTLD_NOW)
        ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        raise BuildFailed(f"{source} was compiled, but cannot be loaded: {error}") from None


@cache
def compiler() -> tuple[tuple[str, ...], str]:
    """Return the words that call the C++ compiler, which CXX may name, and its version."""
    words = shlex.split(env.foreign("CXX")) or ["g++"]
    try:
        if shutil.which(words[0]) is None:
            raise FileNotFoundError(f"there is no {words[0]} on PATH")
        done = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildFailed(f"plugins need a C++ compiler ({error}); install g++, or name one in CXX") from None
    return tuple(words), done.stdout.partition("\n")[0]


def _compile(source: Path, target: Path) -> None:
    words, version = compiler()
    root = headers()
    includes = [f"-I{folder}" for folder in jit.include_folders(root)]
    command = [*words, *OPTIONS, *includes, "-o", str(target), str(source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILER_S)
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"{version} did not compile {source} within {COMPILER_S:g} s") from None
    if done.returncode:
        raise BuildFailed(f"{version} cannot compile {source}:\n{(done.stderr + done.stdout).strip()}")


def headers() -> Path:
    """Return the headers that the library was built from: those that were installed with it, where they are."""
    beside = Path(library.library_path()).parent / "csrc"
    return beside if (beside / "shm" / "group.h").is_file() else jit.csrc()
