#!/bin/bash
# arm64.sh: builds the proxies for arm64 in bin/shim-arm64, checks the versions of the symbols that they import,
# and runs some of their tests in an emulator, with the stand-in driver built for arm64.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "${1:-}" != inside ]; then
  export CC=aarch64-linux-gnu-gcc
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  shim/build.sh bin/shim-arm64
  test/fakedriver/build.sh "$tmp/driver"
  shim/test/build.sh "$tmp/bin" "$tmp/driver"
  for library in bin/shim-arm64/*; do
    newer=$(aarch64-linux-gnu-objdump -T "$library" | grep -o 'GLIBC_2\.[0-9]*' | sort -u | grep -v '^GLIBC_2.17$' || true)
    [ -z "$newer" ] || { echo "$library asks for $newer" >&2; exit 1; }
  done
  unshare -m "$PWD/shim/test/arm64.sh" inside "$tmp"
  exit
fi

tmp=$2
mount -t tmpfs tmpfs /run
mkdir -p /run/gpuledger/driver /run/fakedriver
cp -L "$tmp"/driver/usr/lib/*/lib{cuda,nvidia-ml}.so.1 /run/gpuledger/driver
cp "$tmp/driver/run/fakedriver/devices" /run/fakedriver
emulate() { qemu-aarch64-static -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$PWD/bin/shim-arm64" "$@"; }

# run_tests PROGRAM NAME...: runs each test with an unused grant, written by "records".
run_tests() {
  local program=$1 name
  shift
  for name; do
    rm -f /run/fakedriver/usage
    emulate "$tmp/bin/records"
    out=$(emulate "$tmp/bin/$program" "$name" 2>&1) || { echo "$program $name failed:"$'\n'"$out" >&2; exit 1; }
    echo "ok $program $name"
  done
}
run_tests throttle_test it_is_open_for_the_share a_gate_without_heartbeat a_window_needs_no_clock
run_tests account_test to_the_byte never_more_than_fit never_more_than_fit_in_a_block unchanged_blocks_are_remembered a_million_entries tracking_threads
run_tests client dlopen_and_dlsym cuda_runtime dlvsym_of_dlsym
run_tests client-linked linked
run_tests proxy_test every_kind_is_counted a_pool_is_limited vmm_memory_is_freed_with_its_last_handle_or_mapping \
  graph_memory_is_counted_when_it_is_instantiated fork_after_cuda out_of_memory_reaps_dead_processes_first cu_get_proc_address
run_tests nvml_test memory_is_the_grant processes_are_the_containers
