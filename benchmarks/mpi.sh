#!/usr/bin/env bash
# mpi.sh RANKS [OPTION…]: `commlib bench` beside MPICH and, where OPENMPI_HOME is, beside Open MPI: one job for each, as a
# process can load one MPI only; in a job everything is interleaved. Results go to $OUT-mpich.json and $OUT-openmpi.json.
set -euo pipefail
ranks=$1 && shift
bind=$([ "$ranks" -le "$(nproc)" ] && echo core || echo none)
python=${PYTHON:-.venv/bin/python}
export OMP_NUM_THREADS=1
bench=("$python" -m commlib bench --peers mpi,torch --algorithms auto -f 2 --time 120 "$@")
output() { [ -z "${OUT:-}" ] || echo "-o $OUT-$1.json"; }

"$(dirname "$python")/mpirun" -bind-to "$bind" -n "$ranks" "${bench[@]}" $(output mpich)
if [ -n "${OPENMPI_HOME:-}" ]; then
  export MPI4PY_MPIABI=openmpi MPI4PY_LIBMPI=$OPENMPI_HOME/lib/libmpi.so
  [ "$(id -u)" != 0 ] || root=--allow-run-as-root
  "$OPENMPI_HOME/bin/mpirun" ${root:-} --oversubscribe --bind-to "$bind" -n "$ranks" "${bench[@]}" $(output openmpi)
else
  echo "mpi.sh: no Open MPI; name its folder in OPENMPI_HOME" >&2
fi
