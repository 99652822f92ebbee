"""The cache of compiled code: a file for each result, named by the digest of everything that the result depends on.

read the entry | else lock it | read it again | compile | write it under another name and rename it
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile

from commlib import env
from commlib.users import opened_trusted

COMPILER_S = 300.0  # a file takes seconds
_CHECKSUM_BYTES = 32
_TRIED_BYTES = 1 << 16
_POLL_S = 0.02


def build_cached(kind: str, parts: Iterable[bytes], build: Callable[[], bytes]) -> tuple[bytes, bool]:
    """Return what `build` makes of these parts, once for all processes and threads, and whether the cache had it."""
    digest = sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    name = f"{digest.hexdigest()}.{kind}"
    try:
        folder = cache_dir()
    except RuntimeError as error:  # a user without a home
        _warn(str(error))
        return build(), False
    content = _read(folder, name)
    if content is not None:
        return content, True
    with ExitStack() as stack:
        opened = None
        with _errors_as_warnings(folder):
            opened = stack.enter_context(_opened_folder(folder))
            stack.enter_context(_locked(opened / f".{name}.lock"))
            content = _read(folder, name)
        if content is not None:
            return content, True
        content = build()
        with _errors_as_warnings(folder):
            if opened is not None:
                _write(opened / name, content)
    return content, False


def cache_dir() -> Path:
    """Return where compiled code is stored."""
    home = env.foreign("XDG_CACHE_HOME")
    if home and not env.CACHE_DIR.is_set():
        return Path(home) / "commlib"
    return Path(env.CACHE_DIR.get()).expanduser()


def check_writable(folder: Path) -> None:
    """Write into the cache; an OSError says why that fails."""
    with _opened_folder(folder) as opened, TemporaryFile(dir=opened) as file:
        file.write(bytes(_TRIED_BYTES))  # a full disk takes a file without content
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _opened_folder(folder: Path) -> Iterator[Path]:
    """Yield a path to the folder that stays this user's when somebody puts another folder in its place."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with opened_trusted(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        yield Path(f"/proc/self/fd/{fd}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that saves work only: an entry is whole without it, so nobody waits for a holder that hangs."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + COMPILER_S
        while time.monotonic() < end:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_POLL_S)
            except OSError:  # a file system without locks
                break
            else:
                break
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # whoever waits for the lock still gets it, and then reads the entry
        os.close(fd)


def _read(folder: Path, name: str) -> bytes | None:
    """Return an entry that is whole and that only this user, or root, can have written."""
    try:
        with (
            opened_trusted(folder, os.O_RDONLY | os.O_DIRECTORY) as opened,
            opened_trusted(name, os.O_RDONLY | os.O_NOFOLLOW, opened) as fd,
            open(fd, "rb", closefd=False) as file,
        ):
            entry = file.read()
    except OSError:
        return None
    content, checksum = entry[:-_CHECKSUM_BYTES], entry[-_CHECKSUM_BYTES:]
    return content if sha256(content).digest() == checksum else None


def _write(path: Path, content: bytes) -> None:
    with NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:  # its mode is 0600
        try:
            file.write(content + sha256(content).digest())
            file.flush()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


@contextmanager
def _errors_as_warnings(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _warn(f"{error.strerror or error}: {folder}")


@cache
def _warn(reason: str) -> None:
    logging.getLogger("commlib").warning(
        "compiled code is not stored (%s): each process compiles it again; set %s", reason, env.CACHE_DIR.name
    )
