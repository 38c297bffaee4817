#!/bin/bash
# refuses.sh RUNTIME NODE
# Checks that RUNTIME is gpuledger's, with the configuration of that node: it must refuse a container that reaches each GPU. On the node inventory
# that is a privileged one, so its inventory has GPUs. On none a privileged container starts, and only a rule with NVIDIA's number is refused.
# The container has no program: one that is not refused does not run.
set -euo pipefail
[ $# = 2 ] || { sed -n 2,5p "$0" >&2; exit 2; }
case $2 in
  inventory) rules='{"allow": true, "access": "rwm"}' wanted=privileged-gpu ;;
  none) rules='{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "major": 195, "access": "rwm"}' wanted=inventory-missing ;;
  *) echo "refuses.sh: there is no node $2" >&2; exit 2 ;;
esac
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/rootfs"
printf '{"ociVersion": "1.0.2", "process": {"args": ["/gpuledger-no-such-program"], "cwd": "/"}, "root": {"path": "rootfs"},
  "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}], "resources": {"devices": [%s]}}}\n' "$rules" >"$dir/config.json"
if said=$("$1" create --bundle "$dir" gpuledger-refuses 2>&1) || [[ $said != *"gpuledger: refused ($wanted)"* ]]; then
  echo "$1 does not refuse a container as $wanted on the node $2, so gpuledger is not in its place, or the node is not as it should be: ${said:-it says nothing}" >&2
  "$1" delete --force gpuledger-refuses >/dev/null 2>&1 || true
  exit 1
fi
