"""What goes before PyTorch's base classes: ranks forked from a server that has imported torch, or live ranks."""

import multiprocessing
import os
import unittest

from torch.testing._internal.common_distributed import TEST_SKIPS, TIMEOUT_OVERRIDE

import commlib.torch_backend.group  # noqa: F401  # or every rank would import it

TIMEOUT_OVERRIDE.clear()  # one deadline for all tests


def started(environment, target, args, kwargs):
    os.environ.update(environment)  # the server's is as old as the server
    target(*args, **kwargs)


def forked(*, target, name, args, kwargs):
    return multiprocessing.Process(target=started, name=name, args=(dict(os.environ), target, args, kwargs))


class ForkedRanks:
    """Put it before the base; a rank then costs milliseconds, and its reason for a skip is known."""

    def _spawn_processes(self):
        self._start_processes(forked)

    def run_test(self, test_name, parent_pipe):
        test = getattr(self, test_name)

        def telling():
            try:
                test()
            except unittest.SkipTest as skip:
                parent_pipe.send(str(skip))
                raise

        setattr(self, test_name, telling)
        super().run_test(test_name, parent_pipe)

    def _check_return_codes(self, fn, elapsed_time):
        try:
            super()._check_return_codes(fn, elapsed_time)
        except unittest.SkipTest as skip:
            if str(skip) != TEST_SKIPS["generic"].message:
                raise
            raise unittest.SkipTest(self.pid_to_pipe[self.processes[0].pid].recv()) from None
        # The base looks at rank 0 alone.
        expected = self.special_return_code_checks.get(fn, 0)
        codes = [process.exitcode for process in self.processes]
        if fn not in self.skip_return_code_checks and set(codes) != {expected}:
            self.fail(f"the ranks' exit codes are {codes}")

    def tearDown(self):
        for process in self.processes:
            process.kill()
            process.join()
        super().tearDown()
