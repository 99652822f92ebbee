"""A kernel from outside the tree runs on GPUs, to the bits of commlib's own."""

from pathlib import Path

import pytest

from commlib import env
from tests.gpu.commands import on_two_ranks
from tests.plugins import SAME_BITS

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


def test_a_kernel_of_a_plugin_gives_the_bits_of_commlibs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN)
    plugin.with_name("lsa_ll_mine.cu").write_text(KERNEL)
    monkeypatch.setenv(env.PLUGINS.name, str(plugin))
    said = on_two_ranks(SAME_BITS, "nccl", "lsa_ll_oneshot", "lsa_ll_mine")
    assert said.count("same bits by lsa_ll_mine") == 2
