"""The world of a torch process group that the program made itself."""

from __future__ import annotations

import os
from typing import Any

from commlib.bootstrap.launcher import Identity, first_number
from commlib.bootstrap.store import StoreWorld


class ProcessGroupWorld(StoreWorld):
    """Exchanges over the group's store, not its collectives: a deadline missed there breaks the group."""

    def __init__(self, group: Any, timeout_s: float = 300.0) -> None:
        self.group = group
        who = Identity(group.rank(), group.size(), first_number(os.environ, "LOCAL_RANK"))
        super().__init__("process_group", group.get_group_store(), who, timeout_s)
        self.store = self._store
