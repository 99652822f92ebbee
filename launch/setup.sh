#!/usr/bin/env bash
# setup.sh [--cpu|--gpu]: make .venv and install commlib (editable) with its tools, then compile what changed of csrc/.
# PYTHON=python3.12 picks the interpreter, CXX=clang++ the compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

cpu_torch=2.13.0
cpu_index=https://download.pytorch.org/whl/cpu
cpu_nvrtc=13.0.88 # the oldest: what it compiles, newer ones do; with GPUs torch brings its own
python=${PYTHON:-python3}

fail() { echo "setup: $*" >&2; exit 1; }
run() { printf '+ %s\n' "$*"; "$@"; }
show_types() { [ ! -e $built/_native.pyi ] || cp -u $built/_native.pyi commlib/; } # where editors look for it

mode=${1:-}
if [ -z "$mode" ]; then
  if [ -e /dev/nvidiactl ]; then mode=--gpu; else mode=--cpu; fi
fi
case "$mode" in
  --cpu | --gpu) ;;
  *) echo "setup: unknown option $mode; usage: launch/setup.sh [--cpu|--gpu]" >&2 && exit 2 ;;
esac

command -v "$python" >/dev/null || fail "no $python here; install Python 3.10 or newer, or set PYTHON=/path/to/python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "$("$python" -V) is too old; commlib needs 3.10 or newer: set PYTHON=/path/to/python"

# What an install depends on: another checkout, interpreter, option or list of packages means another install. It leaves
# its objects in build/dev, where ninja knows what a changed source means. Device code is compiled when it is used.
built=build/dev
stamp=.venv/commlib-setup.sha256
now=$({ echo "$PWD $mode" && "$python" -VV && cat pyproject.toml launch/setup.sh; } | sha256sum)
if [ -x .venv/bin/commlib ] && [ -e $built/build.ninja ] && [ "$(cat "$stamp" 2>/dev/null)" = "$now" ]; then
  .venv/bin/ninja --quiet -C $built || fail "csrc/ does not compile; the library of before stays in .venv"
  site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
  .venv/bin/cmake --install $built --prefix "$site/commlib" >/dev/null
  show_types
  echo "setup: .venv is current ($mode)"
  exit 0
fi

rm -f "$stamp" # an installation that ends half-way is none
compiler=${CXX:-c++}
command -v "$compiler" >/dev/null || fail "no C++17 compiler ($compiler); e.g. apt-get install g++, or set CXX=/path/to/compiler"
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python cannot make a venv; e.g. apt-get install python3-venv"

# A venv made for the other kind of machine holds the wrong torch: make it anew.
if [ -e .venv/commlib-mode ] && [ "$(cat .venv/commlib-mode)" != "$mode" ]; then run rm -rf .venv; fi
if [ ! -x .venv/bin/python ]; then
  site=()
  has_cuda_torch='import sys, torch; sys.exit(torch.version.cuda is None)'
  if [ "$mode" = --gpu ] && "$python" -c "$has_cuda_torch" 2>/dev/null; then site=(--system-site-packages); fi
  run "$python" -m venv ${site[@]+"${site[@]}"} .venv
fi
echo "$mode" >.venv/commlib-mode
pip=(.venv/bin/python -m pip --disable-pip-version-check)

run "${pip[@]}" install --quiet "pip>=25.1" # the first that reads [dependency-groups]
if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
  if [ "$mode" = --cpu ]; then # PyPI's own build carries CUDA: 2.8 GB instead of 0.2
    run "${pip[@]}" install --retries 1 --extra-index-url "$cpu_index" "torch==$cpu_torch"
  else
    run "${pip[@]}" install torch
  fi
fi
# What an older checkout installed under its former name owns the same files: it goes first.
if compgen -G '.venv/lib/python*/site-packages/commlib-*.dist-info' >/dev/null; then
  run "${pip[@]}" uninstall --quiet --yes commlib
fi
packages=(--group dev)
extras=mpi,programs,test
if [ "$mode" = --cpu ]; then packages+=("nvidia-cuda-nvrtc==$cpu_nvrtc"); else extras+=,gpu; fi
run "${pip[@]}" install --quiet "${packages[@]}"
# With the build's own tools from .venv, not from an environment that pip throws away, its objects stay good.
run "${pip[@]}" install --quiet --no-build-isolation --config-settings "build-dir=$built" --editable ".[$extras]"
show_types
echo "$now" >"$stamp"
echo "setup: .venv is ready ($mode); next: . .venv/bin/activate && commlib doctor"
