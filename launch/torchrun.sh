#!/usr/bin/env bash
# torchrun.sh N command…: run a command on N ranks of this host through torchrun.
# More hosts: set NNODES, NODE_RANK and MASTER_ADDR (and MASTER_PORT) on each of them.
set -euo pipefail
[[ $# -ge 2 && $1 =~ ^([1-9][0-9]*|auto|cpu|gpu)$ ]] || { echo "usage: launch/torchrun.sh N command…" >&2; exit 2; }
ranks=$1
shift
bin=$(cd "$(dirname "$0")/.." && pwd)/.venv/bin
[ -d "$bin" ] && PATH=$bin:$PATH

[[ ${NNODES:-1} =~ ^[1-9][0-9]*$ ]] || { echo "torchrun.sh: NNODES=$NNODES is no number of hosts" >&2; exit 2; }
if [ "${NNODES:-1}" -gt 1 ]; then
  where=(--nnodes "$NNODES" --node-rank "${NODE_RANK:?NODE_RANK is needed with NNODES}"
    --master-addr "${MASTER_ADDR:?MASTER_ADDR is needed with NNODES}" --master-port "${MASTER_PORT:-29500}")
else
  where=(--standalone)
fi
exec torchrun "${where[@]}" --nproc-per-node "$ranks" --no-python "$@"
