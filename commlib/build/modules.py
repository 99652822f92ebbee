"""Modules that are loaded by the path of their file."""

from __future__ import annotations

import sys
from hashlib import sha256
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


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
