"""Tests whose ranks go wrong, or that take their process along, to see that the run says so and goes on."""

import os
import time
import unittest

from torch.testing._internal.common_distributed import MultiProcessTestCase

from tests.torch_suite.forked_ranks import ForkedRanks
from tests.torch_suite.setting import RANKS


class Alone(unittest.TestCase):
    def test_alone_1_hangs(self):
        time.sleep(1000)

    def test_alone_2_dies(self):
        os._exit(3)


class Forked(ForkedRanks, MultiProcessTestCase):
    world_size = RANKS

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_forked_1_fails_on_one_rank(self):
        self.assertEqual(self.rank, 0)

    def test_forked_2_dies_on_one_rank(self):
        if self.rank == 1:
            os._exit(3)

    def test_forked_3_hangs_on_one_rank(self):
        if self.rank == 1:
            time.sleep(1000)

    def test_forked_4_is_skipped_on_its_ranks(self):
        self.skipTest("for a reason of its own")

    def test_forked_5_passes(self):
        self.assertLess(self.rank, RANKS)
