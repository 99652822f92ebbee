"""A vLLM server on commlib, asked over HTTP, where vLLM is installed (`make test-engines`)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engines import vllm_model
from tests.programs.launched import free_port

pytest.importorskip("vllm", reason="vLLM is not installed: make test-engines")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


class Server:
    def __init__(self, folder: Path, ranks: int, engines: str) -> None:
        self.port, self.model, self.log = free_port(), str(folder), folder / "log"
        options = ["--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager", "--max-model-len", "256"]
        options += ["--seed", "7", "--tensor-parallel-size", str(ranks), "--port", str(self.port)]
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model, *options]
        with self.log.open("w") as log:
            more = vllm_model.variables(ranks, engines)
            self.process = subprocess.Popen(command, env=os.environ | more, stdout=log, stderr=log)
        self.root = psutil.Process(self.process.pid)

    def wait_until_it_answers(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health").close()
                return
            assert self.process.poll() is None, self.text()[-3000:]
            time.sleep(0.5)

    def tokens(self, prompt: list[int], count: int) -> Any:
        """Return the tokens that follow a prompt; of a request that fails, its status."""
        fields = {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        body = json.dumps({"model": self.model, **fields}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)["choices"][0]["token_ids"]
        except urllib.error.HTTPError as error:
            return error.code

    def worker(self, rank: int) -> psutil.Process:
        (found,) = (
            each for each in self.root.children(recursive=True) if f"Worker_TP{rank}" in " ".join(each.cmdline())
        )
        return found

    def text(self) -> str:
        return self.log.read_text()


@contextlib.contextmanager
def served(folder: Path, ranks: int, engines: str) -> Iterator[Server]:
    folder.mkdir()
    vllm_model.write_model(folder)
    server = Server(folder, ranks, engines)
    processes = [server.root]
    try:
        server.wait_until_it_answers()
        processes += server.root.children(recursive=True)
        yield server
    finally:
        server.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(60)
        for process in processes:  # a worker that a failed test left stopped would hold its locks forever
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def answers(server: Server) -> list[Any]:
    """Return the tokens of several requests at once."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda prompt: server.tokens(prompt, 16), vllm_model.PROMPTS))


def test_two_ranks_answer_with_the_same_tokens_and_a_worker_that_stops_or_dies_is_named(tmp_path: Path) -> None:
    with served(tmp_path / "plain", 2, "") as server:
        plain = answers(server)
        assert "on commlib" not in server.text()
    with ThreadPoolExecutor() as pool, served(tmp_path / "ours", 2, "vllm") as server:
        assert answers(server) == plain
        assert "vLLM tp:0: 2 ranks on commlib, backend shm" in server.text()
        lost, waiting = server.worker(1), server.worker(0)
        server.tokens([5, 7, 11], 200)  # compiles what it needs, under a lock that a stopped worker would keep
        request = pool.submit(server.tokens, [5, 7, 11], 200)
        time.sleep(0.3)
        lost.suspend()
        time.sleep(2)
        command = [sys.executable, "-m", "commlib", "debug", str(waiting.pid)]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        assert "rank 1 has not made all_" in said  # reduce, or gather
        assert f"process {lost.pid} is stopped by a signal" in " ".join(said.split())
        lost.resume()
        assert len(request.result()) == 200
        request = pool.submit(server.tokens, [5, 7, 11], 200)
        time.sleep(0.3)
        lost.kill()
        assert request.result() == 500
        assert f"PeerLost: rank 1 (process {lost.pid}) died; rank 0 was in all_" in server.text()
