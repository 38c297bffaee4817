#!/bin/bash
# test-gpu.sh [stand-in]: what only a real GPU can show, on this machine's own. It prints what it sees as a section for
# docs/gpu-results.md. With "stand-in" it goes the same way over a simulated GPU, so that it does not rot on machines without one.
#
# It allocates memory on the first GPU, up to what is free there, and changes no setting of the card.
set -euo pipefail
cd "$(dirname "$0")/.."
me=test-gpu
. test/story.sh

# result WHAT: a line of the report, with what the last command said.
result() { printf -- '- %s: `%s`\n' "$1" "$(tr '\n' ';' <said | sed 's/;$//; s/;/; /g')" >>report; }

# start NAME GRANT-ARGS...: a grant and a container that holds it, with a C library and nothing of the driver.
start() {
  local name=$1
  shift
  run gpuledger grant "$@" --gpu 0 --label "$name"
  reference >"$name.grant"
  bundle "$name"
  programs "$name"
  annotate "$name" "$(cat "$name.grant")"
  real_gpu || book "$name"
  ! find "$name/rootfs" -iname '*nvidia*' -o -name 'libcuda*' | grep . || die "the image should have nothing of the driver"
  run gpuledger-runtime --root run run --detach --bundle "$name" "$name"
}

within() { run gpuledger-runtime --root run exec "$@"; }

finish() {
  run gpuledger-runtime --root run delete --force "$1"
  run gpuledger release "$(cut -d. -f1 "$1.grant")"
}

# exclusively: the whole driver, and no limit.
exclusively() {
  chapter "A GPU as a whole"
  start whole --mode exclusive
  within whole nvidia-smi -L
  [ "$(grep -c '^ *GPU ' said)" = 1 ] || die "nvidia-smi should list one GPU"
  result "nvidia-smi -L in a container whose image has no file of the driver's"
  within whole gpu total 64
  says "64 MiB: 0"
  result "a CUDA program there (total memory; 64 MiB allocated)"
  finish whole
}

# limited: two containers side by side, each with its share as the GPU.
limited() {
  local free part name
  free=$(mib "$(gpu free 0)")
  part=$((free / 4))
  chapter "Two containers with $part MiB each"
  for name in one two; do
    start "$name" --memory "${part}MiB"
  done
  for name in one two; do
    within "$name" nvidia-smi
    grep -qE "/ *${part} ?MiB" said || die "nvidia-smi should show $part MiB"
    within "$name" gpu total $((part + 1)) $((part / 2)) $((part / 2 + 1)) 1
    says "GPU 0 total $part MiB (0)"
    says "$((part + 1)) MiB: 2"
    says "$((part / 2)) MiB: 0"
    says "$((part / 2 + 1)) MiB: 2"
    result "container $name with a limit of $part MiB (2 is CUDA_ERROR_OUT_OF_MEMORY)"
  done
  finish one
  finish two
}

# refusals: what the card's own driver must not get to see.
refusals() {
  chapter "Without a grant"
  bundle greedy '.process.env += ["NVIDIA_VISIBLE_DEVICES=all"]'
  refused visible-devices-all gpuledger-runtime --root run run --bundle greedy greedy
  result "NVIDIA_VISIBLE_DEVICES=all without a grant"
}

story() {
  enter
  export GPULEDGER_CONFIG=$PWD/config.toml
  if [ "${1:-}" = stand-in ]; then
    write_config simulated "$PWD/gpus.json" "$PWD/driver"
    run gpuledger inventory simulate --gpus 1 --memory 16160MiB --name "Stand-in" --out gpus.json
  else
    write_config nvml "" "${DRIVER_ROOT:-/}"
  fi
  run gpuledger inventory refresh
  run gpuledger gpus
  {
    printf '\n## %s\n\n`make test-gpu`, gpuledger %s\n\n' "$(date -u +%F)" "$(gpuledger --version | awk '{ print $NF }')"
    gpuledger gpus --json | jq -r '.gpus[] | select(.parent == null) | "- GPU \(.index): \(.name), \(.memory / 1048576 | floor) MiB to grant"'
    printf -- '- driver: %s\n' "$(cat /sys/module/nvidia/version 2>/dev/null || echo 'a stand-in')"
    printf -- '- memory limits of the driver itself: `%s`\n' "$(jq -r '.driver.memory_limits // "not asked"' state/inventory.json)"
  } >report
  exclusively
  limited
  refusals
  run gpuledger check
  chapter "The report"
  cat report
}

case ${1:-} in
  '')
    real_gpu || die "cannot test: this machine has no NVIDIA driver. Left untested: the driver's own files in a container, the limit and the refusals on hardware"
    outside
    ;;
  stand-in)
    ! real_gpu || die "this machine has a real GPU: leave the word away"
    outside stand-in
    ;;
  inside) story "${2:-}" ;;
  *) die "it takes no argument, or: stand-in" ;;
esac
