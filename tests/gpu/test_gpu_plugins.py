"""A kernel from outside the tree runs on GPUs, to the bits of commlib's own."""

from pathlib import Path

import pytest

from commlib import env
from tests.gpu.commands import on_two_ranks

PLUGIN = """
from commlib.collectives import Algorithm
from commlib.collectives.rows import PACKETS, packets

ALGORITHMS = {
    "all_reduce": [Algorithm("lsa_ll_mine", "nccl", kernel="all_reduce", params=PACKETS, variants=packets)]
}
"""
KERNEL = """
#include "device/scatter.cuh"
namespace commlib {
template <class T, class Op, int N>
__global__ void __launch_bounds__(kPacketThreads<N>, 1) lsa_ll_mine(const __grid_constant__ Job job) {
  all_reduce_twoshot<Ll, T, Op, N>(job);
}
}  // namespace commlib
"""
SAME_BITS = """
import torch, commlib
from commlib.plan import Plan
with commlib.init(backend="nccl", timeout_s=60) as comm:
    plans = [Plan.only({"all_reduce": name}, base=comm.plan) for name in ("lsa_ll_oneshot", "lsa_ll_mine")]
    for dtype in (torch.float32, torch.bfloat16):
        for count in (1, 1003, 100_007):
            x = torch.randn(count, generator=torch.Generator().manual_seed(comm.rank)).to(comm.device, dtype)
            given = []
            for plan in plans:
                comm.use(plan)
                given.append(comm.all_reduce(x.clone()))
            assert torch.equal(*given)
    torch.cuda.synchronize()
    comm.check()
    print("same bits by", comm.explain("all_reduce", 4096, mode="eager").algorithm)
"""


def test_a_kernel_of_a_plugin_gives_the_bits_of_commlibs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN)
    plugin.with_name("lsa_ll_mine.cu").write_text(KERNEL)
    monkeypatch.setenv(env.PLUGINS.name, str(plugin))
    assert on_two_ranks("-c", SAME_BITS).count("same bits by lsa_ll_mine") == 2
