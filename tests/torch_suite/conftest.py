"""Ranks are forked from a server that has imported the suite; the first one finds out whether they can use a GPU."""

import multiprocessing
import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def server_of_ranks(request):
    from tests.torch_suite.setting import touch_device

    multiprocessing.set_start_method(os.environ["TORCH_SUITE_START"], force=True)
    multiprocessing.set_forkserver_preload([request.session.items[0].module.__name__])
    first = multiprocessing.Process(target=touch_device)
    first.start()
    first.join()
    if first.exitcode:
        pytest.exit("a forked process cannot use the GPU here; start ranks anew, with --start spawn", 3)
