"""The native library, csrc/binding/module.cc: loaded once, with what Python decides; `_native.pyi` has its types."""

from __future__ import annotations

import importlib
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from commlib import env
from commlib.build.sources import load_module
from commlib.debug.findings import explain
from commlib.errors import BuildFailed
from commlib.redops import CODES, TORCH_OPS
from commlib.worker import call_site

__all__ = ["library"]

_NAME = "commlib._native"


def _load() -> Any:
    override = env.LIBRARY.get()
    try:
        if override:
            module: Any = load_module(Path(override), ExtensionFileLoader(_NAME, override))
        else:
            module = importlib.import_module(_NAME)
    except (ImportError, OSError) as error:
        remedy = "in a checkout run `make setup`, else install commlib again"
        if override:
            remedy = f"{env.LIBRARY.name}={override} names it; unset it, or name a library of this version"
        raise BuildFailed(f"the native library is not there ({error}); {remedy}") from None
    module.connect(torch.Tensor, torch.nn.Parameter)
    module.set_redops(CODES, type(TORCH_OPS["sum"]))
    module.prefix_use(env.ISA.get())
    module.set_recorded(lambda: (b"", call_site()), lambda *ended: (b"", explain(*ended)))
    return module


if TYPE_CHECKING:
    import commlib._native as library
else:
    library = _load()
