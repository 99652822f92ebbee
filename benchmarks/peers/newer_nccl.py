"""The bare calls of a second NCCL in the same processes, beside torch's, for `commlib bench --peer`.

NEWER_NCCL=/path/of/libnccl.so.2 commlib bench --graph --dtype bfloat16 --peer benchmarks/peers/newer_nccl.py

newer_nccl_windows.py is the same on tensors in its symmetric windows. benchmarks/README.md says how to get a library.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from commlib.tools.baselines.nccl import Nccl

VARIABLE, WANTED = "NEWER_NCCL", "the libnccl.so.2 of another NCCL"


class Newer(Nccl):
    """The calls of the peer nccl on a communicator of the other library."""

    name = "newer_nccl"
    labels = ("newer_nccl",)

    def opened(self) -> ctypes.CDLL:
        """Open the other library, whose version the rows name."""
        library = opened()
        self.title = f"NCCL {version(library)}"
        return library


make = Newer


def opened() -> ctypes.CDLL:
    """Open what NEWER_NCCL names; OSError says why it cannot be a second NCCL."""
    named = os.environ.get(VARIABLE)
    if not named:
        raise OSError(f"{VARIABLE} is not set; set it to {WANTED}")
    # By its whole path, or the loader returns the library of that name which is there. Both export the same functions,
    # and NCCL calls some of its own by name: RTLD_DEEPBIND has it find those in itself and not in torch's.
    try:
        library = ctypes.CDLL(str(Path(named).resolve()), os.RTLD_LOCAL | os.RTLD_DEEPBIND)
        version(library)
    except (OSError, AttributeError) as error:
        raise OSError(f"{VARIABLE}={named} is no NCCL ({error}); set it to {WANTED}") from None
    return library


def version(library: ctypes.CDLL) -> str:
    """Return the version that a library says it has: 2.32.3."""
    code = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(code))
    return f"{code.value // 10_000}.{code.value // 100 % 100}.{code.value % 100}"
