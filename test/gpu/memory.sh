# memory.sh: ways to fill a grant, and what NVML sees of it outside.
# For ../test-gpu.sh, which has the functions that the chapters share.
# shellcheck shell=bash disable=SC2154 # each, long, part and status are set there

# frameworks: what takes memory in ways of its own meets the limit, has all of it, and goes on.
frameworks() {
  local way
  chapter "Ways of frameworks, in $part MiB"
  start ways --memory "${part}MiB"
  for way in cache async vmm; do
    within ways work "$way"
    if grep -q 'no such calls' said; then
      skipped "$way" "this driver has no such calls"
      continue
    fi
    awk -v part="$part" '{ good = $3 <= part && $3 >= part * 3 / 4 && $5 == part && $9 == "2," && $11 == $3 } END { exit !good }' said ||
      die "it should have nearly all of $part MiB, then error 2, and all of that again"
    result "$way (2 is CUDA_ERROR_OUT_OF_MEMORY)"
  done
  within ways work graph
  if grep -q 'no such calls' said; then
    skipped "graphs" "this driver has no such calls"
  else
    says "graph: half of it error 0, more than all of it error 2, half again error 0"
    result "CUDA graphs with memory of their own"
  fi
  finish ways
}

# accuracy: NVML, asked outside, against the grant, in bytes. gpuledgerd tells the shim what contexts and code take.
accuracy() {
  local way
  chapter "A full grant, as NVML sees it"
  rm -f beyond
  daemon
  for way in fill fill:3072 fill:700; do
    fills "$way" "full-${way#fill:}" settle
  done
  fills fill at-once # what contexts take is known by now
  crowd 8
  no_daemon
  [ -z "${HAMI_CORE:-}" ] || fills_hami fill:3072
  [ ! -e beyond ] || die "$(head -n 1 beyond)" # only now: the other ways are in the report
}

# promised BYTES: notes a grant that was exceeded.
promised() { [ "$1" -le $((part << 20)) ] || echo "NVML sees $1 bytes of a grant of $((part << 20))" >>beyond; }

# fills WAY NAME [settle]: fills a grant, after what its context takes was measured, and compares. It lives until gpuledgerd knows what contexts take.
fills() {
  local before i bytes
  before=$(used_outside)
  start "$2" --memory "${part}MiB"
  [ "$2" != full-fill ] || result_strength "$2"
  run gpuledger-runtime --root run exec --detach "$2" sh -c "exec work ${3:-} $1 >/tmp/filled 2>&1"
  for ((i = 0; i < 100; i++)); do
    [ ! -s bindings/contexts ] || break
    sleep 0.1
  done
  compared "$1" "$before" "$2/rootfs/tmp/filled" "under a limit$([ -n "${3:-}" ] || echo ", as soon as it runs")"
  promised "$bytes"
  finish "$2"
}

# crowd N: fills a grant by so many processes at once.
crowd() {
  local before bytes i j granted=$((part << 20))
  before=$(used_outside)
  start crowd --memory "${part}MiB"
  for ((i = 0; i < $1; i++)); do
    run gpuledger-runtime --root run exec --detach crowd sh -c "exec work settle fill:3072 >/tmp/filled.$i 2>&1"
  done
  for ((j = 0; j < 600; j++)); do
    [ "$(cat crowd/rootfs/tmp/filled.* 2>/dev/null | grep -c '^filled')" -lt "$1" ] || break
    sleep 0.1
  done
  bytes=$(($(used_outside) - before))
  printf -- '- under a limit, %s processes at once, blocks of 3072 KiB: of a grant of %s bytes they have %s, and NVML sees %s more in use: **%s bytes beyond the grant** (to be 0 or less)\n' \
    "$1" "$granted" "$(cat crowd/rootfs/tmp/filled.* | awk '/^filled/ { sum += $3 } END { printf "%.0f", sum }')" "$bytes" "$((bytes - granted))" >>report
  promised "$bytes"
  finish crowd
}

# compared WAY BEFORE FILE HOW: waits until it is full, and writes down what NVML sees; sets bytes to that.
compared() {
  local i filled granted=$((part << 20))
  for ((i = 0; i < 1200; i++)); do
    ! grep -q '^filled' "$3" 2>/dev/null || break
    sleep 0.1
  done
  cat "$3"
  filled=$(sed -nE 's/^filled with ([0-9]+) bytes$/\1/p' "$3")
  [ -n "$filled" ] || die "it should have filled its grant"
  bytes=$(($(used_outside) - $2))
  printf -- '- %s, %s: of a grant of %s bytes the program has %s, and NVML sees %s more in use than before: **%s bytes beyond the grant** (to be 0 or less)\n' \
    "$4" "$(case $1 in fill) echo "blocks of 256 MiB and smaller" ;; *) echo "blocks of ${1#fill:} KiB" ;; esac)" "$granted" "$filled" "$bytes" "$((bytes - granted))" >>report
}

fills_hami() {
  local before pid bytes
  before=$(used_outside)
  mkdir -p /tmp/vgpulock
  rm -f hami.cache filled
  env LD_PRELOAD="$HAMI_CORE" CUDA_REDIRECT="$HAMI_CORE" LIBCUDA_LOG_LEVEL=0 CUDA_DEVICE_MEMORY_LIMIT="${part}m" \
    CUDA_DEVICE_MEMORY_SHARED_CACHE="$PWD/hami.cache" ./work "$1" >filled 2>/dev/null &
  pid=$!
  compared "$1" "$before" filled "under HAMi-core's limit"
  kill -9 "$pid"
  wait "$pid" 2>/dev/null || :
}

result_strength() {
  printf -- '- its strength: `%s`\n' "$(gpuledger grants --json | jq -r --arg id "$(cut -d. -f1 "$1.grant")" '.grants[] | select(.id == $id) | .strength')" >>report
}

used_outside() { gpuledger inventory measure | jq '.gpus[] | select(.index == 0) | .used'; }
