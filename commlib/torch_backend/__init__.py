"""torch.distributed.init_process_group("commlib"): torch's calls, run by commlib's communicators.

`import torch` loads this module through the entry point `torch.backends`, so the backend is known wherever commlib is
installed; nothing is made before a group is. Where that is switched off, torch from 2.14 on finds the backend in
`torch.distributed.backends` when a program names it.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any

from commlib import env

if TYPE_CHECKING:
    from commlib.communicator import Communicator
    from commlib.torch_backend.group import CommlibGroup

NAME = "commlib"
DEVICES = ("cpu", "cuda")
TORCHS = {"cpu": "gloo", "cuda": "nccl"}  # torch's defaults


def register() -> None:
    """Make the backend known to torch.distributed, and its default if COMMLIB_TORCH_DEFAULT says so; twice is fine."""
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=list(DEVICES))
        _become_default(dist.Backend.default_device_backend_map)


def _become_default(defaults: dict[str, str]) -> None:
    """Put the backend into torch's table. `import torch` calls this, so a mistake is a warning and never an error."""
    import torch

    log = logging.getLogger(NAME)
    try:
        devices = TORCHS if env.TORCH_DEFAULT.get() else {}
    except ValueError as error:
        stays = ", ".join(f"{device}:{defaults.get(device)}" for device in DEVICES)
        log.warning("torch.distributed keeps its default backends, %s: %s", stays, error)
        return
    for device, torchs in devices.items():
        if defaults.get(device, torchs) != torchs:
            reason = f"{defaults[device]!r}, which another package has made its default"
        elif device == "cuda" and find_spec("nccl") is None:
            reason = f"{torchs!r}, as commlib needs nccl4py there: pip install commlib-collectives[gpu]"
        else:
            defaults[device] = NAME
            continue
        if device == "cpu" or torch.version.cuda:
            log.warning("COMMLIB_TORCH_DEFAULT=1: the default backend of %s stays %s", device, reason)


def communicator(group: Any = None, device: str = "cpu") -> Communicator:
    """Return the Communicator that serves a group's tensors of a device; every rank of the group must call this.

    Args:
        group: A process group of backend "commlib"; without it, the default group.
        device: "cpu" or "cuda".
    """
    import torch
    import torch.distributed as dist

    from commlib.torch_backend.group import CommlibGroup

    chosen = group or dist.group.WORLD
    if not isinstance(chosen, CommlibGroup):
        raise TypeError(f'group is of type {type(chosen).__name__}, but must be a process group of backend "{NAME}"')
    return chosen.communicator(torch.device(device))


def _create(options: Any, backend_options: Any) -> CommlibGroup:
    import torch.distributed as dist

    from commlib.torch_backend.engines import Place
    from commlib.torch_backend.group import CommlibGroup, Options

    if backend_options is not None and not isinstance(backend_options, Options):
        raise TypeError(
            f"pg_options is of type {type(backend_options).__name__}, but backend {NAME!r} takes "
            "commlib.torch_backend.group.Options"
        )
    # A part of the store for these ranks only: each rank counts groups, so two may have one name.
    ranks = ",".join(map(str, options.global_ranks_in_group))
    c10d: Any = dist.distributed_c10d
    store = c10d.PrefixStore(hashlib.sha256(ranks.encode()).hexdigest()[:16], options.store)
    place = Place(store, options.group_rank, options.group_size, options.timeout)
    return CommlibGroup(place, _kinds(sys._getframe(1)), backend_options)


def _kinds(caller: FrameType) -> dict[str, str]:
    """Return the backend of each device of the group that is being made: {"cpu": "commlib", "cuda": "nccl"}.

    torch tells a backend only its part, and then drops the other backends of a group that is made in Python.
    """
    config = caller.f_locals.get("backend_config")
    return dict.fromkeys(DEVICES, NAME) if config is None else dict(config.get_device_backend_map())
