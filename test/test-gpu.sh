#!/bin/bash
# test-gpu.sh [stand-in]: what only a real GPU can show, on this machine's own. It prints what it sees as a section for
# docs/gpu-results.md. With "stand-in" it goes the same way over a simulated GPU, so that it does not rot on machines without one.
#
# It allocates memory on the first GPU, up to what is free there, and changes no setting of the card. No other program should use the GPU,
# because the figures would mean nothing. SECONDS_EACH is how long each measured loop runs. CHAPTERS names the chapters to run, if not all.
# HAMI_CORE is the path of HAMi-core's libvgpu.so, if it is to be measured, too. The chapters are in test/gpu/.
set -euo pipefail
cd "$(dirname "$0")/.."
me=test-gpu
. test/story.sh
# shellcheck source=/dev/null
for file in test/gpu/*.sh; do . "$file"; done
# shellcheck disable=SC2034 # they are for the chapters
each=${SECONDS_EACH:-5} long=$(awk -v each="${SECONDS_EACH:-5}" 'BEGIN { print 6 * each }')
all="exclusively limited frameworks costs throughput accuracy throttled around unledgered watching mps pytorch refusals"

# die WHY: ends the chapter. The report gets the reason, and the next chapter begins.
die() {
  echo "$me: $*" >&2
  [ "$PWD" != "${STORY_DIR:-}" ] || echo "$*" >>why
  exit 1
}

# result WHAT: a line of the report, with what the last command said.
result() { printf -- '- %s: `%s`\n' "$1" "$(tr '\n' ';' <said | sed 's/;$//; s/;/; /g')" >>report; }

# skipped WHAT WHY: a line of the report for what this machine cannot show.
skipped() {
  say "skipped: $1: $2"
  printf -- '- **not shown**: %s: %s\n' "$1" "$2" >>report
}

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

# outside_containers COMMAND...: on the machine itself, with the driver's own libraries.
outside_containers() {
  if real_gpu; then
    run "$@"
  else
    run env LD_LIBRARY_PATH="$(dirname "$(find "$PWD/driver" -name libcuda.so)")" "$@"
  fi
}

# daemon: gpuledgerd for the next chapter.
daemon() {
  gpuledgerd --nri off --runtime-root "$PWD/run" >daemon.log 2>&1 &
  daemon=$!
  echo "$daemon" >daemon.pid
}
no_daemon() {
  kill "$daemon"
  wait "$daemon" || :
  rm daemon.pid
}

story() {
  local name failures=''
  enter
  export GPULEDGER_CONFIG=$PWD/config.toml
  if [ "${1:-}" = stand-in ]; then
    # Its NVML is asked as a real one is. Its GPU is on no bus, and each kernel takes a fifth of a millisecond.
    mount -t tmpfs tmpfs /sys/bus/pci/devices
    mkdir /sys/bus/pci/devices/0000:01:00.0 book
    printf 'GPU-00000000-fa4e-d41e-0000-000000000001 16160 Stand-in\ncontext 64\nunlisted 5700\nlaunch 200\n' >book/devices
    export FAKEDRIVER_DIR=$PWD/book
    write_config nvml "" "$PWD/driver"
  else
    write_config nvml "" "${DRIVER_ROOT:-/}"
  fi
  printf '[daemon]\nlisten = ""\ninterval = "500ms"\n' >>config.toml
  run gpuledger inventory refresh
  run gpuledger gpus
  {
    printf '\n## %s\n\n`make test-gpu`, gpuledger %s\n\n' "$(date -u +%F)" "$(gpuledger --version | awk '{ print $NF }')"
    gpuledger gpus --json | jq -r '.gpus[] | select(.parent == null) | "- GPU \(.index): \(.name), \(.memory / 1048576 | floor) MiB to grant"'
    printf -- '- driver: %s\n' "$(cat /sys/module/nvidia/version 2>/dev/null || echo 'a stand-in')"
    printf -- '- memory limits of the driver itself: `%s`\n' "$(jq -r '.driver.memory_limits // "not asked"' state/inventory.json)"
  } >report
  # shellcheck disable=SC2034 # for the chapters
  part=$(($(mib "$(gpu free 0)") / 4))
  cp config.toml config.first
  for name in ${CHAPTERS:-$all}; do
    tell "$name"
  done
  run gpuledger check
  chapter "The report"
  cat report
  [ -z "$failures" ] || die "these failed:$failures"
}

# tell CHAPTER: in a shell of its own. What a chapter that fails leaves is removed.
tell() {
  local status began=$SECONDS
  rm -f why
  set +e
  (
    set -e
    "$1"
  )
  status=$?
  set -e
  say "($1: $((SECONDS - began)) s)"
  if [ "$status" != 0 ]; then
    failures+=" $1"
    printf -- '- **FAILED**: %s: %s\n' "$1" "$(tail -n 1 why 2>/dev/null || echo "status $status")" >>report
    show_logs
    clean_node
  fi
  cp config.first config.toml
}

show_logs() {
  [ ! -e daemon.pid ] || sed 's/^/  gpuledgerd: /' daemon.log | tail -n 20
  tail -n 3 audit.jsonl 2>/dev/null | cut -c1-600 | sed 's/^/  audit: /'
}

clean_node() {
  local container id
  if [ -e daemon.pid ]; then
    kill "$(cat daemon.pid)" 2>/dev/null || :
    sleep 1
    rm -f daemon.pid
  fi
  umount ./*/rootfs 2>/dev/null || :
  for container in run/*/; do
    [ ! -d "$container" ] || runc --root run delete --force "$(basename "$container")" || :
  done
  for id in $(gpuledger grants --json | jq -r '.grants[].id'); do
    gpuledger release --force "$id" || :
  done
}

case ${1:-} in
  '')
    real_gpu || die "cannot test: this machine has no NVIDIA driver. Left untested: the driver's own files in a container, the limit, its accuracy and cost, shares of compute, and the refusals on hardware"
    outside
    ;;
  stand-in)
    ! real_gpu || die "this machine has a real GPU: leave the word away"
    outside stand-in
    ;;
  inside) story "${2:-}" ;;
  *) die "it takes no argument, or: stand-in" ;;
esac
