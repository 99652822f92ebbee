"""Every error commlib raises for the world; the caller's own mistakes are ValueError and TypeError."""

from __future__ import annotations


class CommError(RuntimeError):
    """Something about the world, not about the call, stopped the operation."""


class PeerLost(CommError):
    """A rank died, closed its communicator, or cannot be reached any more."""


class CommTimeout(CommError):
    """A rank did not come within the deadline."""


class PlanMismatch(CommError):
    """The ranks do not agree on something they must agree on: plan, version, arena size."""


class Closed(CommError, ValueError):
    """The communicator was closed before this call: the caller's mistake, and the end of what it was for."""


class Unsupported(CommError):
    """This machine, backend or build cannot do what was asked; the message says what can."""


class BuildFailed(CommError):
    """Native code could not be built or loaded."""


KINDS: tuple[type[CommError], ...] = (CommError, *CommError.__subclasses__())


def one_line(error: BaseException) -> str:
    """Write an error of another library as a reason that stands in a table."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
