#!/usr/bin/env bash
# gpu_box.sh COMMAND…: on a machine with GPUs and no package index, build and install from .whl/, then run the command
# away from the checkout, with its results in $OUT. `gpu_box.sh tests` runs the GPU tests. A wheel of commlib that lies in
# .whl/ is not built again, and kernels in .whl/kernels are not compiled again.
set -uo pipefail
cd "$(dirname "$0")/.."
export OUT=${OUT:-$PWD/build/gpu_box}
mkdir -p "$OUT"
python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target /tmp/site .whl/*.whl || exit 1
export PYTHONPATH=/tmp/site PATH=/tmp/site/bin:$PATH
if ! compgen -G ".whl/commlib_collectives-*.whl" >/dev/null; then
  python3 -m pip install -q --no-deps --no-build-isolation --no-compile --upgrade --target /tmp/site . || exit 1
fi
if [ -d .whl/kernels ]; then
  export COMMLIB_CACHE_DIR=/tmp/kernels
  mkdir -p "$COMMLIB_CACHE_DIR" && cp -r .whl/kernels/. "$COMMLIB_CACHE_DIR"
fi
rm -rf /tmp/run && mkdir /tmp/run && cp -r tests benchmarks examples pyproject.toml /tmp/run && cd /tmp/run # the wheel, not the checkout
if [ "${1:-tests}" = tests ]; then
  shift || true
  set -- python3 -m pytest -q -p no:cacheprovider "${@:-tests/gpu}"
fi
"$@"
