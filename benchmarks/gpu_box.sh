#!/usr/bin/env bash
# On a machine with GPUs and no package index: build, test the torch backend over NCCL, run the conformance suite, and
# measure the shm backend on real cores. Wheels that the machine lacks lie in .whl; results go to $OUT.
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-build/gpu_box}
mkdir -p "$OUT"
python3 -m pip install -q --no-index --no-deps --no-compile --target /tmp/site .whl/*.whl || exit 1
export PYTHONPATH=/tmp/site PATH=/tmp/site/bin:$PATH
python3 -m pip install -q --no-deps --no-build-isolation --no-compile --target /tmp/site . || exit 1
rm -rf /tmp/run && mkdir /tmp/run && cp -r tests benchmarks pyproject.toml /tmp/run && cd /tmp/run  # not the checkout: the wheel
nproc; lscpu | grep -E "Model name|Socket|NUMA node|L2|L3"; python3 -c "import torch; print(torch.__version__, torch.cuda.device_count())"
python3 -m commlib doctor
timeout 200 python3 -m pytest -q -p no:cacheprovider tests/gpu 2>&1 | tail -15
timeout 200 python3 -m pytest -q -p no:cacheprovider tests/collectives tests/faults tests/test_communicator.py 2>&1 | tail -8
export OPENMPI_HOME=$(dirname "$(dirname "$(command -v mpirun)")")
for n in 2 4 8; do
  timeout 120 python3 benchmarks/peers/run.py --ranks $n --seconds 45 -o "$OUT/peers_h200_box_$n.json" 2>&1 | tail -120
done
true
