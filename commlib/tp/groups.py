"""From a torch process group to the Communicator that the layers take."""

from __future__ import annotations

from typing import Any

import torch

from commlib import torch_backend
from commlib.communicator import Communicator, init
from commlib.torch_backend.group import CommlibGroup


def communicator(group: Any, device: torch.device | str = "cpu") -> Communicator:
    """Return a Communicator of a process group's ranks; every rank of the group must call this.

    Args:
        group: A Communicator, which is returned; a group of backend "commlib", which owns what is returned; or any
            other group (gloo, nccl), whose ranks get a new communicator: call once, and close it.
        device: Where the tensors of a group of backend "commlib" are.
    """
    if isinstance(group, Communicator):
        return group
    if isinstance(group, CommlibGroup):
        return torch_backend.communicator(group, torch.device(device).type)
    return init(bootstrap=group)
