"""Kernels that serve every collective of a kind: those that only move blocks, and those that reduce one for a rank."""

from __future__ import annotations

from commlib.collectives.nccl_calls import refuses_before_hopper
from commlib.collectives.params import PACKETS, PIPES
from commlib.collectives.spec import Algorithm
from commlib.collectives.variants import lines, pipes

LINES_MOVE = Algorithm("lsa_ll128_exchange", "nccl", kernel="all_to_all", params=PACKETS, variants=lines)
LINES_REDUCE = Algorithm("lsa_ll128_exchange", "nccl", kernel="reduce", params=PACKETS, variants=lines)
PIPES_MOVE = Algorithm(
    "lsa_pipe_exchange", "nccl", kernel="all_to_all", refuses=refuses_before_hopper, params=PIPES, variants=pipes
)
PIPES_REDUCE = Algorithm(
    "lsa_pipe_exchange", "nccl", kernel="reduce", refuses=refuses_before_hopper, params=PIPES, variants=pipes
)
