"""Tests that take the process that runs them along, to see that the run says so and goes on in a new one."""

import os
import time
import unittest


class Alone(unittest.TestCase):
    def test_alone_1_hangs(self):
        time.sleep(1000)

    def test_alone_2_dies(self):
        os._exit(3)

    def test_alone_3_passes(self):
        pass


class Unset(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise OSError("no such thing")

    def test_unset_is_not_started(self):
        pass
