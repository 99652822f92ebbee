"""The errors that commlib raises; mistakes of the caller are ValueError and TypeError instead."""

from __future__ import annotations


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


class Unsupported(CommError):
    """This machine, backend or build cannot do what was asked; the message says what can."""


class BuildFailed(CommError):
    """Native code could not be built or loaded."""


KINDS: tuple[type[CommError], ...] = (CommError, *CommError.__subclasses__())


def one_line(error: BaseException) -> str:
    """Write an error of another library as a reason that stands in a table."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
