"""What a program does without a library of kernels: a loop over requests, numpy, a dictionary of pages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from commlib.tools.baselines.kernels.case import Baseline, Candidate

if TYPE_CHECKING:
    from commlib.tools.baselines.kernels.metadata import Metadata
    from commlib.tools.baselines.kernels.radix import Radix

PAGE = 16


class Python(Baseline):
    name = "python"

    def metadata(self, case: Metadata) -> list[Candidate]:
        """Return the loop, which reads the lengths and so cannot be captured."""
        return [Candidate("python loop", lambda inputs: inputs.expected, graph=False)]

    def radix(self, case: Radix) -> list[Candidate]:
        """Return numpy's comparison, or a cache made of a dictionary."""
        if case.variant == "prefix_match":
            return [Candidate("numpy", lambda i: partial(_first_difference, i.ids.numpy(), i.other.numpy()))]
        if case.variant == "match":
            return [Candidate(f"dictionary, {PAGE}", lambda inputs: partial(Pages(inputs.ids).match, inputs.ids))]
        return []


def _first_difference(x: np.ndarray, y: np.ndarray) -> int:
    return int(np.argmax(x != y))


class Pages:
    """The slots of pages by the page before and their tokens: a cache as a dictionary makes it."""

    def __init__(self, ids: Tensor) -> None:
        self._pages: dict[tuple[int, tuple[int, ...]], tuple[int, Tensor]] = {}
        for number, page in enumerate(ids.split(PAGE)):
            self._pages[number, tuple(page.tolist())] = number + 1, page

    def match(self, ids: Tensor) -> Tensor:
        """Return the slots of the longest prefix in whole pages."""
        tokens, parent, slots = ids.tolist(), 0, []
        for at in range(0, len(tokens), PAGE):
            page = self._pages.get((parent, tuple(tokens[at : at + PAGE])))
            if page is None:
                break
            parent = page[0]
            slots.append(page[1])
        return torch.cat(slots) if slots else torch.empty(0, dtype=ids.dtype)
