#!/usr/bin/env bash
# mpirun.sh N command…: run a command on N ranks through the mpirun beside .venv's python, or the one on PATH.
# HOSTFILE=path spreads the ranks over hosts. Python scripts: `python -m mpi4py script.py` aborts all when one fails.
set -euo pipefail
[[ $# -ge 2 && $1 =~ ^[1-9][0-9]*$ ]] || { echo "usage: launch/mpirun.sh N command…" >&2; exit 2; }
ranks=$1
shift
bin=$(cd "$(dirname "$0")/.." && pwd)/.venv/bin
[ -d "$bin" ] && PATH=$bin:$PATH # mpi4py must be started by the mpirun of its own MPI
command -v mpirun >/dev/null || { echo "mpirun.sh: no mpirun here; pip install mpi4py mpich" >&2; exit 1; }

options=(-n "$ranks")
if mpirun --version 2>/dev/null | grep -qi "open mpi\|openrte\|prrte"; then
  options+=(--oversubscribe) # MPICH oversubscribes unasked
  [ "$(id -u)" -ne 0 ] || options+=(--allow-run-as-root)
  [ -z "${HOSTFILE:-}" ] || options+=(--hostfile "$HOSTFILE")
else
  [ -z "${HOSTFILE:-}" ] || options+=(-f "$HOSTFILE")
fi
exec mpirun "${options[@]}" "$@"
