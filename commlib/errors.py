"""The errors that commlib raises; mistakes of the caller are ValueError and TypeError instead."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, NoReturn

_ELSEWHERE = {  # names of other libraries, without underscores, and ours
    "allgather": "all_gather_into_tensor",
    "reducescatter": "reduce_scatter_tensor",
    "alltoall": "all_to_all_single",
}


class CommError(RuntimeError):
    """Something outside the call stopped the operation: a peer, the settings, the machine or the build."""


class PeerLost(CommError):
    """A rank died, closed its communicator, or cannot be reached any more."""


class CommTimeout(CommError):
    """A rank did not come within the deadline."""


class PlanMismatch(CommError):
    """The ranks have different plans, versions, backends or settings."""


class Closed(CommError, ValueError):
    """The communicator was closed before this call; this is a ValueError and a CommError."""


CLOSED_TEXT = "this communicator is closed; call commlib.init() for a new one"


class _Closed:
    def __getattr__(self, name: str) -> NoReturn:
        raise Closed(CLOSED_TEXT)


CLOSED: Any = _Closed()
"""What stands for the calls of a communicator that is closed, or its engine."""


class Unsupported(CommError):
    """This machine, backend or build cannot do what was asked; the message says what can."""


class BuildFailed(CommError):
    """Native code could not be built or loaded."""


KINDS: dict[str, type[CommError]] = {kind.__name__: kind for kind in CommError.__subclasses__()}
KINDS["CommError"] = CommError


def meant(name: str, known: Iterable[str]) -> str:
    """Return what an error about an unknown name adds: '; did you mean all_reduce?', or nothing if none is near."""
    near = [_ELSEWHERE.get(name.replace("_", ""), ""), *get_close_matches(name, known, 1)]
    return next((f"; did you mean {one}?" for one in near if one in known), "")


def one_of(name: str, value: object, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(known)}{meant(str(value), known)}")


def limit_of(error: BaseException) -> str:
    """Return which limit of this process an error of Python's means, and how to raise it; "" for another error."""
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return "raise `ulimit -n`"
    threads = isinstance(error, RuntimeError) and "start new thread" in str(error)
    processes = isinstance(error, OSError) and error.errno == errno.EAGAIN
    return "raise `ulimit -u`, or the container's limit of processes" if threads or processes else ""


@contextmanager
def limits_of(what: str) -> Iterator[None]:
    """Raise a CommError where a limit of open files, processes or threads stops what runs inside."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if remedy := limit_of(error):
            raise CommError(f"{what} ran into a limit: {error}; {remedy}") from None
        raise


def first_line(error: BaseException) -> str:
    """Return what an error says before its stack."""
    return (str(error) or type(error).__name__).split("\n", 1)[0].rstrip(".")


def one_line(error: BaseException) -> str:
    """Write an error of another library as a reason that stands in a table."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def printable(document: Any) -> Any:
    """Return a document whose texts have no control characters, which a terminal obeys, but for line ends and tabs."""
    if isinstance(document, dict):
        return {printable(key): printable(value) for key, value in document.items()}
    if isinstance(document, list):
        return [printable(value) for value in document]
    if not isinstance(document, str) or document.isprintable():
        return document
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in document)
