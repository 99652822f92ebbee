"""The reduce kernels give the same bits at every x86-64 level, for any bit pattern."""

import math
import platform
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from commlib.collectives.all_reduce_rms_norm import TYPES
from commlib.collectives.reference import ordered
from commlib.communicator import Communicator
from commlib.tools.testing import Ranks
from commlib.tools.testing.conformance import TYPES as EVERY

COUNT = 999


def patterns(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Random bits: NaN, infinities, denormals and all; the first ones are infinities that add up to NaN."""
    generator = torch.Generator().manual_seed(rank)
    raw = torch.randint(0, 256, (COUNT * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    x = raw.view(dtype)
    if dtype.is_floating_point:
        x[0] = math.inf if rank else -math.inf
    return x


def reduce_patterns(comm: Communicator) -> tuple[list[str], dict[str, int]]:
    """Reduce in every type; return what differs from the reference, and checksums with NaN made one value."""
    wrong, sums = [], {}
    for dtype in (dtype for dtype in EVERY if dtype != torch.bool and not dtype.is_complex):
        for redop in ("sum", "prod", "min", "max", "avg"):
            x = patterns(comm.rank, dtype)
            comm.all_reduce(x, redop)
            expected = ordered([patterns(r, dtype) for r in range(comm.size)], redop)
            if dtype.is_floating_point:
                x, expected = (torch.where(t.double().isnan(), 0, t.double()) for t in (x, expected))
            got = x.view(torch.uint8).numpy().tobytes()
            if got != expected.view(torch.uint8).numpy().tobytes():
                wrong.append(f"{dtype} {redop}")
            sums[f"{dtype} {redop}"] = zlib.crc32(got)
    return wrong, sums


def norms(comm: Communicator) -> dict[str, int]:
    """Return checksums of norms of rows, some of them of a width that no vector divides."""
    sums = {}
    forms: tuple[dict[str, Any], ...] = ({}, {"center": True}, {"quant": "fp8_token"}, {"quant": "fp8_group"})
    for dtype, width, form in product(TYPES, (24, 1000, 2944), forms):
        if width % 128 and form.get("quant") == "fp8_group":
            continue
        x, residual, weight = (
            torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
            for seed, shape in ((comm.rank, (5, width)), (100, (5, width)), (101, (width,)))
        )
        found = comm.all_reduce_rms_norm(x * 10.0 ** torch.arange(-4, 1)[:, None].to(dtype), residual, weight, **form)
        sums[f"{dtype} {width} {form}"] = zlib.crc32(b"".join(y.view(torch.uint8).numpy().tobytes() for y in found))
    return sums


@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels are an x86-64 matter")
def test_every_level_gives_the_reference_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    have = set(Path("/proc/cpuinfo").read_text().split())
    for level, needs in (("v2", "sse4_2"), ("v3", "avx2"), ("v4", "avx512bw")):
        if needs not in have:
            continue
        monkeypatch.setenv("COMMLIB_ISA", level)
        with Ranks(3, backend="shm", max_bytes=1 << 20) as ranks:
            for wrong, sums in ranks.run(reduce_patterns):
                assert wrong == [], level
                seen[level] = sums
            seen[level] |= ranks.run(norms)[0]
    assert len(seen) >= 1
    assert all(sums == seen["v2"] for sums in seen.values())
