"""Collectives measured on the box they run on: start with `comm = commlib.init()`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from commlib.errors import BuildFailed, Closed, CommError, CommTimeout, PeerLost, PlanMismatch, Unsupported, meant
from commlib.version import __version__

if TYPE_CHECKING:
    from commlib.communicator import Communicator, init
    from commlib.compile.epilogue import epilogue
    from commlib.compile.fuse import fuse, inductor
    from commlib.core.work import Work
    from commlib.plan import Plan
    from commlib.radix import RadixCache

__all__ = [
    "BuildFailed",
    "Closed",
    "CommError",
    "CommTimeout",
    "Communicator",
    "PeerLost",
    "Plan",
    "PlanMismatch",
    "RadixCache",
    "Unsupported",
    "Work",
    "__version__",
    "epilogue",
    "fuse",
    "inductor",
    "init",
]

# Name → its module, loaded when first asked for: `import commlib` loads neither torch nor native code.
_LAZY = {
    "Communicator": "commlib.communicator",
    "Plan": "commlib.plan",
    "RadixCache": "commlib.radix",
    "Work": "commlib.core.work",
    "epilogue": "commlib.compile.epilogue",
    "fuse": "commlib.compile.fuse",
    "inductor": "commlib.compile.fuse",
    "init": "commlib.communicator",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'commlib' has no attribute {name!r}{meant(name, __all__)}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return list(__all__)
