#!/usr/bin/env bash
# sanitize.sh: build everything with ASan + UBSan and with TSan, run the stress program and the tests; a report fails.
# Threads as ranks (the stress program) show TSan the traffic between ranks. Under Python ranks are processes, so there
# it sees what the threads of one rank do (async_op); only gloo, which nobody instrumented, has to be left out.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${SECONDS_EACH:-25} # of the stress program, under each
python=.venv/bin/python
run() { printf '+ %s\n' "$*"; "$@"; }

build() { # folder, sanitizers, more flags
  .venv/bin/cmake -S . -B "build/$1" -G Ninja -DCMAKE_MAKE_PROGRAM="$PWD/.venv/bin/ninja" -DCMAKE_BUILD_TYPE=Release \
    -DCOMMLIB_TESTS=ON -DCOMMLIB_SANITIZE="$2" -DCMAKE_CXX_FLAGS="${3:-}" >/dev/null
  run .venv/bin/ninja --quiet -C "build/$1"
}

tests() { # folder, runtime, pytest's arguments
  local folder=$1 runtime=$2
  shift 2
  # The interpreter is not instrumented: the runtime must be there before it, and libstdc++ before the first exception.
  printf '+ pytest with build/%s:' "$folder" && printf ' %q' "$@" && echo
  COMMLIB_LIBRARY=$PWD/build/$folder/_native.abi3.so \
    LD_PRELOAD="$(g++ -print-file-name="$runtime") $(g++ -print-file-name=libstdc++.so)" \
    "$python" -m pytest -q -p no:cacheprovider "$@"
}

build asan address,undefined
build tsan thread

export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
ASAN_OPTIONS=detect_leaks=1 run build/asan/stress --seconds "$seconds"
ASAN_OPTIONS=detect_leaks=1 run build/asan/fuzz_radix --seconds "$seconds"
TSAN_OPTIONS=halt_on_error=1 run build/tsan/stress --seconds "$seconds"

# Python and torch leak by design, so leaks are the stress program's to find.
export ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:ignore_noninstrumented_modules=1
tests asan libasan.so tests/collectives -k shm
tests asan libasan.so tests/radix tests/kernels/test_prefix.py
tests asan libasan.so tests/faults tests/test_communicator.py -k 'not torch'
tests tsan libtsan.so tests/faults tests/test_communicator.py -k 'not torch'
echo "sanitize: no report"
