"""The variables of the environment that change a figure: named families only, as the rest holds secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from commlib import env

FAMILIES = ("NCCL_", "CUDA_", "TORCH_NCCL_", "OMP_", "COMMLIB_")
SECRETS = ("KEY", "TOKEN", "SECRET", "PASS", "CRED")
HOSTS = frozenset({"NCCL_COMM_ID", "CUDA_MPS_CLIENT_HOST"})
HIDDEN = "(set)"


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings of these families; of paths and addresses only that they are set, of secrets nothing."""
    found = os.environ if variables is None else variables
    ours = {variable.name for variable in env.VARIABLES if variable.internal}
    paths = {variable.name for variable in (env.PLAN, env.LIBRARY, env.CACHE_DIR)}
    return {
        name: HIDDEN if name in paths or name in HOSTS or _is_place(value) else value
        for name, value in sorted(found.items())
        if name.startswith(FAMILIES) and name not in ours and not any(word in name for word in SECRETS)
    }


def _is_place(value: str) -> bool:
    return bool(re.search(r"[/\\~@]|\b\d+(\.\d+){3}\b", value))  # a path, a user at a host, or an address
