"""One process that runs the tests of one suite, and tells each start and end on a pipe: `python -m … MODULE FD`."""

import contextlib
import importlib
import json
import multiprocessing
import os
import re
import sys
import time
import unittest

from tests.torch_suite.setting import touch_device


class Teller(unittest.TestResult):
    """A unittest result that writes one line of JSON for each start and each end."""

    def __init__(self, pipe):
        super().__init__()
        self._pipe = pipe
        self._told = {}

    def tell(self, **line):
        print(json.dumps(line), file=self._pipe, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self._started_s = time.monotonic()
        self._told = {}
        self.tell(test=name_of(test))

    def stopTest(self, test):
        super().stopTest(test)
        self.tell(test=name_of(test), seconds=round(time.monotonic() - self._started_s, 1), **self._told)

    def addSuccess(self, test):
        self._told = self._told or {"outcome": "passed"}

    def addSkip(self, test, reason):
        self._told = {"outcome": "skipped", "reason": reason}

    def addError(self, test, err):
        text = self._exc_info_to_string(err, test)
        print(f"\n==== {test.id()}\n{text}", file=sys.stderr, flush=True)
        self._told = {"outcome": "failed", "reason": cause(text)}
        if not isinstance(test, unittest.TestCase):  # setUpClass or tearDownClass: no test was started
            self.tell(test=test.id(), seconds=0.0, **self._told)

    def addFailure(self, test, err):
        self.addError(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addError(test, err)


def name_of(test):
    return test.id().rpartition(".")[2]


def cause(text):
    """Return the line that names the error: the last that looks like one, where text follows the traceback."""
    named = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Timeout|PeerLost|Unsupported)\b: .*", text, re.MULTILINE)
    rest = [line for line in text.splitlines() if line.strip()]
    return (named or rest)[-1][:300]


def main():
    module, fd = sys.argv[1], int(sys.argv[2])
    wanted = json.load(sys.stdin)
    multiprocessing.set_start_method(os.environ["TORCH_SUITE_START"])
    multiprocessing.set_forkserver_preload([module])
    server = multiprocessing.Process(target=touch_device)  # starts the server, so that no test waits for its imports
    with contextlib.suppress(EOFError):  # where they fail, the import below says why
        server.start()
    tests = each_of(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module)))
    tests = [test for test in tests if re.search(wanted["match"], name_of(test))]
    first, step = wanted["share"]
    tests = [test for test in tests[first::step] if wanted["only"] is None or name_of(test) in wanted["only"]]
    server.join()
    if server.exitcode:
        raise SystemExit("a forked process cannot use the GPU here; start ranks anew, with --start spawn")
    with os.fdopen(fd, "w") as pipe:
        result = Teller(pipe)
        result.tell(tests=[name_of(test) for test in tests])
        unittest.TestSuite(tests).run(result)
        result.tell(end=True)


def each_of(suite):
    for test in suite:
        yield from each_of(test) if isinstance(test, unittest.TestSuite) else [test]


if __name__ == "__main__":
    main()
