"""SGLang on commlib, where SGLang's Python is installed (`make test-engines`): its hooks and its group of ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("engines", ["", "sglang"])
def test_its_group_of_ranks_calls_commlib_where_it_is_asked_for(engines: str, device: str) -> None:
    pytest.importorskip("sglang", reason="SGLang is not installed: make test-engines")
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    script = Path(__file__).with_name("sglang_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, device]
    environment = os.environ | {"COMMLIB_ENGINES": engines, "COMMLIB_LOG": "info", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    text = done.stdout + done.stderr
    if not engines:
        assert "class " in text and "class commlib" not in text
        return
    assert done.returncode == 0, text
    assert text.count("values right") == 2
    assert text.count("class commlib.engines.custom_all_reduce") == 2
    assert "SGLang: 2 ranks on commlib" in text
