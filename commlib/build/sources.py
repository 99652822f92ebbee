"""What is loaded at run time by its path: native sources, with all that a file of them includes, and modules."""

from __future__ import annotations

import re
import sys
from hashlib import sha256
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from commlib.errors import BuildFailed

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)


def csrc() -> Path:
    """Return the folder of the native sources: the checkout's, or else the one installed with the package."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "csrc", package / "csrc"):
        if (folder / "include" / "commlib" / "job.h").is_file():
            return folder
    raise BuildFailed(f"the sources of the kernels are not next to {package}; reinstall commlib, or run `make setup`")


def include_folders(root: Path) -> tuple[Path, Path]:
    return root, root / "include"


def files_of(path: Path, root: Path) -> dict[Path, bytes]:
    """Return the contents of a source and of all headers of ours that it includes."""
    files: dict[Path, bytes] = {}

    def add(file: Path) -> None:
        files[file] = file.read_bytes()
        for name in _INCLUDE.findall(files[file]):
            places = ((folder / name.decode()).resolve() for folder in (file.parent, *include_folders(root)))
            header = next(filter(Path.is_file, places), None)
            if header is not None and header not in files:
                add(header)

    add(path)
    return files


def load_module(path: Path, loader: ExtensionFileLoader | None = None) -> ModuleType:
    """Run a Python file as a module whose name no other file gets; or a library, by its loader's name."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    name = loader.name if loader else f"commlib_{sha256(str(path).encode()).hexdigest()[:8]}_{path.stem}"
    spec = spec_from_file_location(name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses and pickle look it up
    spec.loader.exec_module(module)
    return module
