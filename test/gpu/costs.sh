# costs.sh: what a limit and a share of compute cost, natively, beside HAMi-core.
# For ../test-gpu.sh, which has the functions that the chapters share.
# shellcheck shell=bash disable=SC2154 # each, long, part and status are set there

# costs: what a limit, and a share of compute, add to single calls: in one process, in turns with the driver's own.
costs() {
  local who contestants="limited shared ${HAMI_CORE:+hami}" behind=beside:/run/gpuledger/driver/libcuda.so.1
  chapter "What single calls cost"
  printf '[enforcement]\ncompute = "throttle"\n' >>config.toml
  start limited --memory "${part}MiB"
  attempt gpuledger grant --memory "${part}MiB" --compute 50 --gpu 0
  if [ "$status" = 0 ]; then
    run gpuledger release "$(reference | cut -d. -f1)"
    start shared --memory "${part}MiB" --compute 50
  else
    skipped "the cost of a share of compute" "$(head -n 1 said)"
    contestants=${contestants/shared/}
  fi
  for who in $contestants; do
    case $who in
      hami) hami "$PWD/work" beside:libcuda.so.1 "allocate:$each" "launch:$each" ;;
      *) within "$who" work "$behind" "allocate:$each" "launch:$each" ;;
    esac
    sed -nE "s/^(small|large|launch): //p" said | grep -q beside || die "it should have compared with the driver's own calls"
    printf -- '- %s, in turns with the driver'\''s own in one process:\n' "$(case $who in
      limited) echo "under a limit" ;;
      shared) echo "under a limit with a share of compute" ;;
      hami) echo "under HAMi-core's limit" ;;
    esac)" >>report
    sed -nE "s/^small: /  - cuMemAlloc and cuMemFree of 4 KiB: /p; s/^large: /  - of 32 MiB: /p; s/^launch: /  - cuLaunchKernel: /p" said |
      sed -E 's/so ([-+][0-9.]+)$/so **\1 ns**/' >>report
  done
  finish limited
  [[ $contestants != *shared* ]] || finish shared
  [ -z "${HAMI_CORE:-}" ] || beyond_hami
}

# throughput: loops on the machine itself and in a container with a limit, in turns.
throughput() {
  local i loop native limited turns=5
  real_gpu || turns=1 # it shows that the way can be gone, and no figure
  chapter "Throughput under a limit"
  start loops --memory "${part}MiB"
  rm -f ./*.rates
  for ((i = 0; i < turns; i++)); do
    for loop in product train; do
      outside_containers ./work "$loop:$each"
      rate "$loop" >>"native-$loop.rates"
      within loops work "$loop:$each"
      rate "$loop" >>"limited-$loop.rates"
      ! real_gpu || [ "$loop" = train ] || says ", right"
    done
  done
  for loop in product train; do
    native=$(median "native-$loop.rates") limited=$(median "limited-$loop.rates")
    [ -n "$native" ] || { skipped "$loop" "this driver has no stream-ordered memory"; continue; }
    printf -- '- %s loop, a second, medians of %s in turns: %s natively, %s under a limit: **%s %%** of native (to be 99 or more)\n' "$loop" "$turns" "$native" "$limited" \
      "$(awk -v n="$native" -v l="$limited" 'BEGIN { printf "%.1f", 100 * l / n }')" >>report
  done
  finish loops
}

# throttled: the experiment of docs/adr/0042, which needs at most five points of error on hardware before it is recommended.
throttled() {
  local share free held
  chapter "A share of compute"
  printf '[enforcement]\ncompute = "throttle"\n' >>config.toml
  daemon
  start whole-rate --memory "${part}MiB"
  within whole-rate work "product:$each"
  free=$(rate product)
  finish whole-rate
  for share in 30 70; do
    attempt gpuledger grant --memory "${part}MiB" --compute "$share" --gpu 0
    if [ "$status" != 0 ]; then
      skipped "a share of compute" "$(head -n 1 said)"
      break
    fi
    run gpuledger release "$(reference | cut -d. -f1)"
    start "share-$share" --memory "${part}MiB" --compute "$share"
    within "share-$share" work "product:$long" "product:$long"
    held=$(rate product)
    printf -- '- products a second with a share of %s %%: %s of %s, **%s %%** (after %s s; within 5 points to be recommended)\n' "$share" "$held" "$free" \
      "$(awk -v f="$free" -v h="$held" 'BEGIN { printf "%.1f", 100 * h / f }')" "$long" >>report
    finish "share-$share"
  done
  [ "$status" != 0 ] || together "$free" 20 60
  no_daemon
}

# together RATE SHARE...: grants with shares of their own on one GPU at once. RATE is that of the whole GPU.
together() {
  local free=$1 share pids=()
  shift
  for share; do start "beside-$share" --memory "${part}MiB" --compute "$share"; done
  for share; do
    gpuledger-runtime --root run exec "beside-$share" work "product:$long" "product:$long" >"beside-$share.said" 2>&1 </dev/null &
    pids+=($!)
  done
  sleep "$long"
  seen_outside "$(awk -v long="$long" 'BEGIN { print long / 2 }')"
  wait "${pids[@]}"
  for share; do
    cp "beside-$share.said" said
    printf -- '- products a second with a share of %s %%, while other grants use theirs (%s): **%s %%**\n' "$share" "$*" \
      "$(awk -v f="$free" -v h="$(rate product)" 'BEGIN { printf "%.1f", 100 * h / f }')" >>report
    finish "beside-$share"
  done
}

# seen_outside SECONDS: what NVML says of the use of the containers' processes. gpuledgerd goes by it.
seen_outside() {
  local pid percent
  outside_containers ./work "seen:$1"
  while read -r pid percent; do
    printf -- '- NVML says of the use of %s: %s %%\n' "$(grep -om 1 'beside-[0-9]*' "/proc/$pid/cgroup" || echo "process $pid")" "$percent" >>report
  done < <(sed -nE 's/^seen: process ([0-9]+): ([0-9.]+) percent.*/\1 \2/p' said)
}

# rate NAME: the number before "a second" in what the last command said.
rate() { sed -nE "s/^$1: ([0-9.]+) .*/\\1/p" said | tail -n 1; }

median() { sort -n "$1" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

# hami COMMAND...: on the machine itself under HAMi-core, with the same limit.
hami() {
  rm -f hami.cache
  mkdir -p /tmp/vgpulock
  outside_containers env PATH="$PWD:$PATH" LD_PRELOAD="$HAMI_CORE" CUDA_REDIRECT="$HAMI_CORE" LIBCUDA_LOG_LEVEL=0 \
    CUDA_DEVICE_MEMORY_LIMIT="${part}m" CUDA_DEVICE_MEMORY_SHARED_CACHE="$PWD/hami.cache" "$@"
}

# beyond_hami: how HAMi-core holds the same limit.
beyond_hami() {
  local way
  hami gpu total $((part + 1)) $((part / 2)) $((part / 2 + 1))
  result "HAMi-core with a limit of $part MiB (2 is CUDA_ERROR_OUT_OF_MEMORY)"
  for way in cache async vmm; do
    hami work "$way"
    result "HAMi-core, $way"
  done
}
