"""The C++ of plugins: compiled once, and loaded into the process that runs them."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from commlib import env
from commlib.build.cache import COMPILER_S, build_cached
from commlib.build.sources import csrc, files_of, include_folders
from commlib.errors import BuildFailed
from commlib.native import library
from commlib.version import __version__

OPTIONS = ("-std=gnu++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-Wall")


@cache
def load_plugin(source: Path) -> None:
    """Compile a C++ file, unless the cache has it, and load it: it registers its algorithms with the library."""
    _, version = compiler()
    parts = [text.encode() for text in (version, __version__, *OPTIONS)]
    content, _ = build_cached("so", [*parts, *files_of(source, headers()).values()], lambda: _compile(source))
    # In memory: what is loaded is what was checked. Never closed: the loader would take another file for this one.
    fd = os.memfd_create(f"{source.stem}.so"[-200:])
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    try:
        # Python loads the library only for itself; a plugin needs its symbols.
        ctypes.CDLL(library.library_path(), mode=os.RTLD_NOLOAD | os.RTLD_GLOBAL | os.RTLD_NOW)
        ctypes.CDLL(f"/proc/self/fd/{fd}", mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        raise BuildFailed(f"{source} was compiled, but cannot be loaded: {error}") from None


@cache
def compiler() -> tuple[tuple[str, ...], str]:
    """Return the command of the C++ compiler, which CXX may name, and its version."""
    command = shlex.split(env.foreign("CXX")) or ["g++"]
    try:
        if shutil.which(command[0]) is None:
            raise FileNotFoundError(f"there is no {command[0]} on PATH")
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildFailed(f"plugins need a C++ compiler ({error}); install g++, or name one in CXX") from None
    return tuple(command), done.stdout.partition("\n")[0]


def headers() -> Path:
    """Return the headers that the library was built from: those that were installed with it, where they are."""
    installed = Path(library.library_path()).parent / "csrc"
    return installed if (installed / "shm" / "group.h").is_file() else csrc()


def _compile(source: Path) -> bytes:
    tool, version = compiler()
    includes = [f"-I{folder}" for folder in include_folders(headers())]
    command = [*tool, *OPTIONS, *includes, str(source), "-o"]
    with TemporaryDirectory(prefix="commlib-") as folder:
        target = Path(folder) / f"{source.stem}.so"
        try:
            done = subprocess.run(
                [*command, str(target)], capture_output=True, text=True, check=False, timeout=COMPILER_S
            )
        except subprocess.TimeoutExpired:
            raise BuildFailed(f"{version} did not compile {source} within {COMPILER_S:g} s") from None
        if done.returncode:
            log = (done.stderr + done.stdout).strip()
            again = shlex.join([*command, target.name])
            raise BuildFailed(f"{version} cannot compile {source}:\n{log}\nto repeat it: {again}")
        return target.read_bytes()
