"""tvm-ffi both ways: commlib's calls for its hosts, and its functions as algorithms; csrc/binding/ffi.h, csrc/ffi."""

from __future__ import annotations

from typing import Any

try:
    import tvm_ffi
except ImportError as error:
    raise ImportError(f'commlib.ffi needs tvm-ffi: pip install "apache-tvm-ffi>=0.1.15,<0.2" ({error})') from error

from commlib import errors
from commlib.build.plugin_code import headers
from commlib.build.sources import include_folders
from commlib.native import library

_ADDED: list[tvm_ffi.Function] = []  # native code holds their addresses
for _kind in (errors.CommError, errors.Closed, errors.CommTimeout, errors.PeerLost, errors.Unsupported):
    tvm_ffi.register_error(_kind.__name__, _kind)


def path() -> str:
    """Return the library for `tvm_ffi.load_module`: the one that this process has loaded already."""
    return library.library_path()


def handle(comm: Any) -> int:
    """Return the number by which calls through tvm-ffi name a Communicator; it does not keep the communicator open."""
    number: int = comm.resources.calls().handle()
    return number


def include() -> str:
    """Return the folder of `commlib/ffi.h`, for algorithms: `extra_include_paths=[commlib.ffi.include()]`."""
    return str(include_folders(headers())[1])


def add_algorithm(backend: str, op: str, name: str, function: Any) -> None:
    """Make a function the native half of a plugin's row; it stays until the process ends."""
    if not isinstance(function, tvm_ffi.Function):
        raise TypeError(f"function= of {name} returned a {type(function).__name__}, but must return a tvm_ffi.Function")
    _ADDED.append(function)
    library.add_ffi_algorithm(backend, op, name, function.__chandle__())
