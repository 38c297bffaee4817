#!/bin/bash
# bench.sh: measures what the shim adds, in a mount namespace of its own (root). Numbers are for people: nothing fails on them.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "${1:-}" != inside ]; then
  [ "$(id -u)" = 0 ] || { echo "bench-shim needs root: it lays out a container's files" >&2; exit 1; }
  exec unshare -m "$PWD/shim/test/bench.sh" inside
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
shim/build.sh "$tmp/proxy"
mount -t tmpfs tmpfs /run
mkdir -p /run/gpuledger/driver
cc -O2 -shared -fPIC -Wl,-soname,libcuda.so.1 -o /run/gpuledger/driver/libcuda.so.1 shim/test/bench_driver.c
cc -O2 -std=gnu11 -pthread -o "$tmp/bench" shim/test/bench.c -ldl
LD_LIBRARY_PATH=$tmp/proxy "$tmp/bench"
LD_LIBRARY_PATH=$tmp/proxy "$tmp/bench" launch
mv "$tmp/proxy/libcuda-throttle.so.1" "$tmp/proxy/libcuda.so.1"
LD_LIBRARY_PATH=$tmp/proxy "$tmp/bench" launch
