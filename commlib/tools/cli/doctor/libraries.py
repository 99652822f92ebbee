"""Libraries: torch, commlib's own, compilers, NCCL and nccl4py."""

from __future__ import annotations

import ctypes
import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from commlib import env
from commlib.errors import CommError
from commlib.tools.cli.doctor.finding import Finding, broken, missing, ok, warning
from commlib.version import __version__


def torch_build() -> Finding:
    """Return torch's version, and what it was built for."""
    import torch

    return ok(f"{torch.__version__}, {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPU build'}")


def native_library() -> Finding:
    """Load commlib's native library."""
    native = importlib.import_module("commlib.native")
    from_where = f" ({native.library.library_path()})" if env.LIBRARY.is_set() else ""
    return ok(f"commlib {__version__}{from_where}")


def plugins() -> Finding:
    """Load the plugins that the environment names."""
    from commlib.build.plugin_code import compiler
    from commlib.collectives import COLLECTIVES

    if COLLECTIVES.faults:
        return broken("; ".join(COLLECTIVES.faults), f"correct or unset {env.PLUGINS.name}")
    listing = "; ".join(plugin.description for plugin in COLLECTIVES.plugins)
    return ok(f"{listing}; C++ by {compiler()[1]}" if listing else "none")


def compilers() -> Finding:
    """Return what compiles device code: NVRTC, or nvcc where it is missing."""
    from commlib.build.device_code import compiler

    try:
        chosen = compiler().name
    except CommError as error:
        said, _, remedy = str(error).partition("; ")
        return broken(said, remedy)
    nvcc = shutil.which("nvcc") or "no nvcc on PATH"
    return ok(f"{chosen}; {nvcc}" if chosen.startswith("NVRTC") else f"{chosen}, as NVRTC is missing: {nvcc}")


def nccl() -> Finding:
    """Return the NCCL that torch loads, by asking the file itself, and its variables that are set."""
    from commlib.tools.timing import environment

    variables = [f"{name}={value}" for name, value in environment().items() if name.startswith("NCCL_")]
    for path in _places_of_nccl():
        if version := version_of_nccl(path):
            return ok("; ".join([f"{version} ({path})", *variables]))
    return missing("no libnccl.so.2", "install a CUDA build of torch, which brings NCCL along")


def installed_nccl() -> str:
    """Return NCCL's version, "" where it is not here."""
    return next(filter(None, map(version_of_nccl, _places_of_nccl())), "")


def version_of_nccl(path: str) -> str:
    """Return the version of the NCCL in a file, "" for one that cannot be loaded."""
    from commlib.backends.nccl_control import version_text

    try:
        library = ctypes.CDLL(path)
    except OSError:
        return ""
    code = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(code))
    return version_text(code.value)


def _places_of_nccl() -> Iterator[str]:
    for folder in sys.path:
        path = Path(folder) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        if path.exists():
            yield str(path)
    yield "libnccl.so.2"


def nccl4py() -> Finding:
    """Return nccl4py's version, and which features of NCCL are off with this one and this environment."""
    import torch  # noqa: F401  # nccl4py then takes torch's NCCL

    from commlib.backends.nccl_control import REMEDY, nccl4py_here

    try:
        version, features = nccl4py_here()
    except CommError as error:
        return broken(str(error).removesuffix(f"; {REMEDY}"), REMEDY)
    off = [f"{feature} {reason}" for feature, reason in features.items() if reason]
    if any(features[name] for name in ("peer_pointers", "symmetric_windows")):
        return warning(f"{version}; off: {'; '.join(off)}", "without symmetric memory NCCL's own calls run")
    return ok(f"{version}; off: {'; '.join(off)}" if off else f"{version}; NCCL has all that commlib uses")
