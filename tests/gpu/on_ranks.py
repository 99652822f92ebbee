"""Tests whose body runs on every rank of the nccl backend."""

from tests.on_ranks import on_ranks

on_every_rank = on_ranks(fixture="nccl_ranks")
