#!/usr/bin/env bash
# whole_box.sh first|second [RANKS]: what to run on a box that nobody has measured, the most valuable first, in about ten
# minutes each. Every step has a limit and leaves its log and its result in $OUT, so a run that is cut off has something.
# RANKS is the number of GPUs if it is left out. `first`: values, a plan, and all libraries side by side with it; `second`:
# random mixtures, faults, PyTorch's own tests, programs. Compile the kernels beforehand: benchmarks/README.md.
set -uo pipefail
here=$(realpath "$(dirname "$0")") part=${1:-} ranks=${2:-$(nvidia-smi -L 2>/dev/null | wc -l)}
if [[ ! $part =~ ^(first|second)$ ]] || ((ranks < 2)); then
  echo "whole_box.sh first|second [RANKS]: needs two GPUs or more, found $ranks" >&2
  exit 2
fi
OUT=$(realpath -m "${OUT:-$here/../build/whole_box}") && mkdir -p "$OUT" && cd "$here" || exit

step() { # step NAME SECONDS COMMAND…
  local name=$1 limit=$2 begun=$SECONDS
  shift 2
  timeout -k 5 "$limit" "$@" >"$OUT/$name.log" 2>&1
  echo "$name: exit code $? after $((SECONDS - begun)) s; $(tail -n 1 "$OUT/$name.log" | cut -c 1-150)"
}

peers=(--peers nccl,torch,symm --peer peers/nccl_windows.py)
for library in sglang flashinfer; do # their files say how to build them
  [ -f "peers/lib$library.so" ] && peers+=(--peer "peers/$library.py")
done
bench=(--graph -d bfloat16 --algorithms auto "${peers[@]}")

if [ "$part" = first ]; then
  step values 120 commlib test --quick --backend nccl -n "$ranks" -o "$OUT/values.json"
  step tune 150 commlib tune all_reduce all_reduce_rms_norm all_gather reduce_scatter all_to_all broadcast -n "$ranks" --mode graph \
    -d bfloat16 --time 90 -o "$OUT/plan.json"
  [ -f "$OUT/plan.json" ] && export COMMLIB_PLAN=$OUT/plan.json
  step all_reduce 70 commlib bench all_reduce -n "$ranks" --sizes 1K,16K,64K,256K,512K,1M,2M,4M,8M,16M,64M "${bench[@]}" \
    --time 45 -o "$OUT/all_reduce.json"
  step moves 90 commlib bench all_gather reduce_scatter all_to_all broadcast -n "$ranks" \
    --sizes 1K,64K,1M,4M,16M,64M,256M "${bench[@]}" --time 60 -o "$OUT/moves.json"
  step norms 60 commlib run -n "$ranks" python3 norms.py --tokens 1,4,16,64,256,1024 --widths 8192 --time 2 -o "$OUT/norms.json"
  for fewer in 5 6 7; do
    ((fewer < ranks)) && step "values_$fewer" 40 commlib test --quick --backend nccl -n "$fewer" -o "$OUT/values_$fewer.json"
  done
else
  step mixtures 180 python3 mixtures.py 150 --ranks "$ranks" -o "$OUT/mixtures.json"
  step replays 80 python3 hangs.py --graphs --device cuda --faults 20 --seconds 60 -o "$OUT/replays.json"
  cd .. # the tests and their programs
  step faults 120 python3 -m pytest -q tests/gpu/test_communicators.py tests/gpu/test_gpu_faults.py
  step programs 90 python3 -m pytest -q tests/gpu/test_programs.py tests/gpu/test_tp.py
  step suite 150 python3 -m tests.torch_suite commlib -n "$ranks" --device cuda -o "$OUT/suite.json"
  cd benchmarks
  step decode 60 commlib run -n "$ranks" python3 tp_decode.py --batches 1,16,64 --time 3 -o "$OUT/decode.json"
fi
