#!/bin/bash
# test-gpu.sh [stand-in]: what only a real GPU can show, on this machine's own. It prints what it sees as a section for
# docs/gpu-results.md. With "stand-in" it goes the same way over a simulated GPU, so that it does not rot on machines without one.
#
# It allocates memory on the first GPU, up to what is free there, and changes no setting of the card. It wants the card for itself: figures of a GPU on which
# others compute say nothing. SECONDS_EACH is how long each measured loop runs. CHAPTERS names those to run, if not all of them. HAMI_CORE is the
# path of HAMi-core's libvgpu.so, if it is to be measured beside us.
set -euo pipefail
cd "$(dirname "$0")/.."
me=test-gpu
. test/story.sh
each=${SECONDS_EACH:-5} long=$(awk -v each="${SECONDS_EACH:-5}" 'BEGIN { print 6 * each }')
all="exclusively limited frameworks costs throughput accuracy throttled around unledgered watching mps pytorch refusals"

# die WHY: ends the chapter. The report gets the reason, and the next chapter begins.
die() {
  echo "$me: $*" >&2
  echo "$*" >>why
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
  local name
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

# rate NAME: the number before "a second" in what the last command said.
rate() { sed -nE "s/^$1: ([0-9.]+) .*/\\1/p" said | tail -n 1; }
median() { sort -n "$1" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

# outside_containers COMMAND...: on the machine itself, with the driver's own libraries.
outside_containers() {
  if real_gpu; then
    run "$@"
  else
    run env LD_LIBRARY_PATH="$(dirname "$(find "$PWD/driver" -name libcuda.so)")" "$@"
  fi
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

used_outside() { gpuledger inventory measure | jq '.gpus[] | select(.index == 0) | .used'; }

# hami COMMAND...: on the machine itself under HAMi-core, with the same limit.
hami() {
  rm -f hami.cache
  mkdir -p /tmp/vgpulock
  outside_containers env PATH="$PWD:$PATH" LD_PRELOAD="$HAMI_CORE" CUDA_REDIRECT="$HAMI_CORE" LIBCUDA_LOG_LEVEL=0 \
    CUDA_DEVICE_MEMORY_LIMIT="${part}m" CUDA_DEVICE_MEMORY_SHARED_CACHE="$PWD/hami.cache" "$@"
}

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

# unledgered: programs without a container. The shim holds one that is started through us, and the modes of the nodes hold other users.
unledgered() {
  local i nodes uid=65534
  chapter "Programs without a container"
  outside_containers gpuledger run --memory "${part}MiB" -- "$PWD/work" cache
  awk -v part="$part" '/^cache/ { good = $3 <= part && $3 >= part * 3 / 4 && $5 == part && $9 == "2," } END { exit !good }' said ||
    die "it should have nearly all of $part MiB and then error 2"
  result "gpuledger run, cache"
  if ! real_gpu || ! command -v setpriv >/dev/null; then
    skipped "a user's GPU nodes" "they take a real driver, and setpriv"
    return
  fi
  chmod 755 . .. ../.. 2>/dev/null || :
  nodes=(/dev/nvidia0 /dev/nvidiactl /dev/nvidia-uvm)
  printf -- '- nodes of the driver, and NVreg_DeviceFileMode: `%s, %s`\n' "$(stat -c '%A %n' "${nodes[@]}" | tr '\n' ' ')" \
    "$(sed -n 's/^DeviceFileMode: //p' /proc/driver/nvidia/params)" >>report
  cp gpu /tmp/gpu-of-a-user && chmod 755 /tmp/gpu-of-a-user
  chmod 660 "${nodes[@]}"
  attempt setpriv --reuid $uid --regid $uid --clear-groups /tmp/gpu-of-a-user total 64
  result "a user, nodes of mode 0660"
  printf -- '- nodes afterwards: `%s`\n' "$(stat -c '%A %n' "${nodes[@]}" | tr '\n' ' ')" >>report
  chmod 660 "${nodes[@]}"
  attempt nvidia-smi -L
  ./gpu total >/dev/null
  printf -- '- nodes after programs of root: `%s`\n' "$(stat -c '%A %n' "${nodes[@]}" | tr '\n' ' ')" >>report
  printf '[enforcement]\nuser_nodes = "acl"\n' >>config.toml
  chmod 660 "${nodes[@]}"
  daemon
  run gpuledger grant --memory "${part}MiB" --gpu 0 --user $uid
  reference >user.grant
  for ((i = 0; i < 100; i++)); do
    ! getfacl -cn /dev/nvidia0 2>/dev/null | grep -q "user:$uid:rw" || break
    setpriv --reuid $uid --regid $uid --clear-groups sh -c ': </dev/nvidia0' 2>/dev/null && break
    sleep 0.1
  done
  attempt setpriv --reuid $uid --regid $uid --clear-groups /tmp/gpu-of-a-user total 64
  result "a user with a grant, user_nodes = acl"
  nvidia-smi -L >/dev/null
  ./gpu total >/dev/null
  attempt setpriv --reuid $uid --regid $uid --clear-groups /tmp/gpu-of-a-user total 64
  result "the same after programs of root"
  printf -- '- nodes then: `%s`\n' "$(stat -c '%A %n' "${nodes[@]}" | tr '\n' ' ')" >>report
  printf -- '- and gpuledgerd says: `%s`\n' "$(sed -n 's/.*msg="\(user nodes: .*\)"$/\1/p' daemon.log | head -n 1)" >>report
  run gpuledger release "$(cut -d. -f1 user.grant)"
  sleep 2
  attempt setpriv --reuid $uid --regid $uid --clear-groups /tmp/gpu-of-a-user total 64
  result "and after its release"
  no_daemon
  chmod 666 "${nodes[@]}"
  rm /tmp/gpu-of-a-user
}

# watching: what gpuledgerd's look at the GPUs costs.
watching() {
  local before after i pids=() seconds=20
  chapter "The cost of the watch"
  real_gpu || seconds=1
  sed -i 's/^interval = .*/interval = "1s"/' config.toml
  for i in 1 2 3 4; do
    start "watched-$i" --memory 2GiB
    run gpuledger-runtime --root run exec --detach "watched-$i" gpu 64 hold
  done
  daemon
  sleep 3
  pids=("$daemon" $(pgrep -P "$daemon" || :))
  before=$(ticks "${pids[@]}")
  sleep $seconds
  after=$(ticks "${pids[@]}")
  printf -- '- gpuledgerd with 4 containers on the GPU, a look each second: **%s %%** of a core over %s s, %s MiB\n' \
    "$(awk -v t=$((after - before)) -v s=$seconds -v hz="$(getconf CLK_TCK)" 'BEGIN { printf "%.2f", 100 * t / hz / s }')" "$seconds" \
    "$(awk '/^VmRSS/ { sum += $2 } END { printf "%d", sum / 1024 }' $(printf '/proc/%s/status ' "${pids[@]}"))" >>report
  no_daemon
  for i in 1 2 3 4; do finish "watched-$i"; done
}

# ticks PID...: processor time of processes, with that of children they have waited for.
ticks() { sed 's/.*) //' $(printf '/proc/%s/stat ' "$@") | awk '{ t += $12 + $13 + $14 + $15 } END { print t }'; }

# around: a program that goes past the library, and one of the node, are found; policy stops the container.
around() {
  local before=$SECONDS i node
  chapter "Around the limit"
  printf '[policy]\non_over_grant = "stop"\n' >>config.toml
  sed -i 's/^interval = .*/interval = "500ms"\ngrace = "2s"/' config.toml
  daemon
  start past --memory "${part}MiB"
  run gpuledger-runtime --root run exec --detach past sh -c "exec gpu past:/run/gpuledger/driver/libcuda.so.1 $((part + 1024)) hold >/tmp/past 2>&1"
  for ((i = 0; i < 600; i++)); do
    ! found stopped over-grant || break
    sleep 0.1
  done
  printf -- '- past the library, it took %s MiB of %s: `%s`\n' "$((part + 1024))" "$part" "$(tr '\n' ';' <past/rootfs/tmp/past)" >>report
  found stopped over-grant || die "gpuledgerd should have stopped it: $(tail -n 3 daemon.log)"
  printf -- '- and was stopped, %s s after the container began (a finding lasts 2 s first): `%s`\n' "$((SECONDS - before))" "$(found_text stopped over-grant)" >>report
  run gpuledger-runtime --root run delete --force past
  run gpuledger release "$(cut -d. -f1 past.grant)"
  before=$SECONDS
  if real_gpu; then ./gpu 1024 hold & else LD_LIBRARY_PATH="$(dirname "$(find "$PWD/driver" -name libcuda.so)")" ./gpu 1024 hold & fi
  node=$!
  for ((i = 0; i < 600; i++)); do
    ! found found outside-ledger || break
    sleep 0.1
  done
  kill -9 "$node"
  found found outside-ledger || die "gpuledgerd should have found process $node: $(tail -n 3 daemon.log)"
  printf -- '- a program of the node: found after %s s: `%s`\n' "$((SECONDS - before))" "$(found_text found outside-ledger)" >>report
  no_daemon
}

# found EVENT KIND: whether gpuledgerd has recorded it.
found() { [ -n "$(found_text "$@")" ]; }
found_text() { jq -r --arg event "$1" --arg kind "$2" 'select(.action == $event and .finding == $kind) | .message' audit.jsonl 2>/dev/null | head -n 1; }

# accuracy: NVML, asked outside, against the grant, in bytes. gpuledgerd tells the shim what contexts and code take.
accuracy() {
  local way
  chapter "A full grant, as NVML sees it"
  daemon
  for way in fill fill:3072 fill:700; do
    fills "$way" "full-${way#fill:}" settle
  done
  fills fill at-once # what contexts take is known by now
  crowd 8
  no_daemon
  [ -z "${HAMI_CORE:-}" ] || fills_hami fill:3072
}

# fills WAY NAME [settle]: fills a grant, after what its context takes was measured, and compares. It lives until gpuledgerd knows what contexts take.
fills() {
  local before i
  before=$(used_outside)
  start "$2" --memory "${part}MiB"
  [ "$2" != full-fill ] || result_strength "$2"
  run gpuledger-runtime --root run exec --detach "$2" sh -c "exec work ${3:-} $1 >/tmp/filled 2>&1"
  for ((i = 0; i < 100; i++)); do
    [ ! -s bindings/contexts ] || break
    sleep 0.1
  done
  compared "$1" "$before" "$2/rootfs/tmp/filled" "under a limit$([ -n "${3:-}" ] || echo ", as soon as it runs")"
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
  finish crowd
}

# compared WAY BEFORE FILE HOW: waits until it is full, and writes down what NVML sees.
compared() {
  local i filled bytes granted=$((part << 20))
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
  real_gpu || [ "$bytes" -le "$granted" ] || die "NVML sees $bytes bytes of a grant of $granted"
}

fills_hami() {
  local before pid
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
    within "share-$share" work "launch:$each"
    printf -- '- cuLaunchKernel under a share of %s %%: %s ns\n' "$share" "$(rate launch)" >>report
    printf -- '- products a second with a share of %s %%: %s of %s, **%s %%** (after %s s; within 5 points to be recommended)\n' "$share" "$held" "$free" \
      "$(awk -v f="$free" -v h="$held" 'BEGIN { printf "%.1f", 100 * h / f }')" "$long" >>report
    finish "share-$share"
  done
  no_daemon
}

# mps_program NAME: where the driver's files have a program of MPS.
mps_program() {
  jq -r --arg name "$1" '.driver as $d | [$d.files[] | select(.kind == "binary" and (.target | endswith("/" + $name)))][0]
    | ($d.root | rtrimstr("/")) + .path' state/inventory.json
}

mps_state() { cat bindings/mps/*/state.json 2>/dev/null | jq -r "$1"; }

# mps_until CONDITION: waits until jq's condition holds of a daemon's state.
mps_until() {
  local i
  for ((i = 0; i < 600; i++)); do
    [ "$(mps_state "$1")" != true ] || return 0
    sleep 0.1
  done
  return 1
}

# mps_seen WHAT TEXT: a line of the report.
mps_seen() {
  say "$1: $2"
  printf -- '- MPS, %s: `%s`\n' "$1" "$(tr '\n' ';' <<<"$2" | sed 's/;*$//; s/;/; /g')" >>report
}

# mps_ask PIPE COMMAND: asks a daemon as root.
mps_ask() { CUDA_MPS_PIPE_DIRECTORY=$1 timeout 20 "$mps_control" <<<"$2" 2>&1 || :; }

# mps: what docs/adr/0086 says of NVIDIA's programs, item by item, and clients of a daemon.
mps() {
  local mps_control mps_server dir server answer
  chapter "MPS"
  mps_control=$(mps_program nvidia-cuda-mps-control) mps_server=$(mps_program nvidia-cuda-mps-server)
  daemon
  attempt gpuledger grant --mode mps --memory 1536MiB --compute 50 --gpu 0 --label mps
  if [ "$status" != 0 ]; then
    skipped "MPS" "$(head -n 1 said)"
    no_daemon
    return
  fi
  reference >mps.grant
  mps_until '.problem == ""' || die "the MPS daemon is not ready: $(mps_state .problem); $(tail -n 20 bindings/mps/*/log/launch.log)"
  dir=$(echo bindings/mps/*) server=$(mps_state '.servers[0].pid')
  mps_seen "its sockets and FIFO" "$(cd "$dir/pipe" && stat -c '%A %n' control control_privileged log)"
  mps_seen "what listens, of SOCK_SEQPACKET (0005)" "$(grep -E '[ /]control(_privileged)?$' /proc/net/unix | awk '$4 == "00010000" { print $5, $8 }' | sed 's| /.*/| |' | sort -u)"
  if command -v strace >/dev/null; then
    mps_seen "to what root's program connects" "$(CUDA_MPS_PIPE_DIRECTORY=$PWD/$dir/pipe strace -f -e trace=connect -o connects "$mps_control" <<<get_server_list >/dev/null 2>&1 || :
      grep -o '[^/"]*"}' connects | tr -d '"}')"
  else
    skipped "to what root's program connects first" "this machine has no strace"
  fi
  for answer in get_server_list "get_server_status $server" "get_active_thread_percentage $server" "get_default_device_pinned_mem_limit 0" \
    get_default_active_thread_percentage nonsense; do
    mps_seen "asked ${answer/$server/PID} (1536M and 50 % are set)" "$(mps_ask "$PWD/$dir/pipe" "$answer")"
  done
  mps_seen "the server's program, of $mps_server" "$(readlink "/proc/$server/exe")"
  mps_seen "the server's parent is the daemon" "$([ "$(awk '{ print $4 }' "/proc/$server/stat")" = "$(mps_state .daemon.pid)" ] && echo yes || echo "no, but descends from it")"
  mps_seen "the server's libraries" "$(tr '\0' '\n' <"/proc/$server/environ" | sed -n 's/^LD_LIBRARY_PATH=.*mps/LD_LIBRARY_PATH=.../p'; awk '/lib(c|cuda)\.so/ { print $6 }' "/proc/$server/maps" | sort -u)"
  mps_seen "files in its log directory besides ours" "$(find "$dir/log" -type f ! -name 'launch.log*' -size +0 -printf '%f\n')"
  mps_client
  run gpuledger release "$(cut -d. -f1 mps.grant)"
  mps_gone
  mps_by_hand
  mps_users
  no_daemon
}

mps_gone() {
  local i
  for ((i = 0; i < 600; i++)); do
    [ -n "$(ls bindings/mps)" ] || return 0
    sleep 0.1
  done
  die "the MPS daemon should have ended: $(mps_state .problem)"
}

# mps_client: a container in the pod's namespaces and in the node's (ACK's page on MPS wants hostIPC and hostPID).
mps_client() {
  local name
  if ! real_gpu; then
    skipped "clients of MPS" "the stand-in driver is none"
    return
  fi
  for name in client ack; do
    bundle "$name"
    programs "$name"
    annotate "$name" "$(cat mps.grant)"
    [ "$name" = client ] || edit "$name" '.linux.namespaces |= map(select(.type != "ipc" and .type != "pid"))
      | .mounts |= map(if .destination == "/dev/shm" then {destination: "/dev/shm", type: "bind", source: "/dev/shm", options: ["rbind"]} else . end)'
    run gpuledger-runtime --root run run --detach --bundle "$name" "$name"
    within "$name" gpu 1537 512
    says "1537 MiB: 2"
    says "512 MiB: 0"
    result "MPS, $name, limit 1536 MiB (2 is CUDA_ERROR_OUT_OF_MEMORY)"
    run gpuledger-runtime --root run delete --force "$name"
  done
}

# mps_by_hand: a daemon without gpuledgerd: on a GPU that is not there, and what others than root may ask it, and what quit leaves.
mps_by_hand() {
  local pipe daemon_pid status=0
  pipe=$(mktemp -d /tmp/mps-XXXXXX)
  chmod 755 "$pipe"
  CUDA_VISIBLE_DEVICES=99 CUDA_MPS_PIPE_DIRECTORY=$pipe CUDA_MPS_LOG_DIRECTORY=$pipe PATH=$PATH:${mps_server%/*} timeout 5 "$mps_control" -f >by-hand.log 2>&1 || status=$?
  mps_seen "a daemon without a GPU ends (124: it was killed after 5 s)" "status $status, prints: $(tail -n 3 by-hand.log)"
  CUDA_VISIBLE_DEVICES=$(gpu uuid 0) CUDA_MPS_PIPE_DIRECTORY=$pipe CUDA_MPS_LOG_DIRECTORY=$pipe PATH=$PATH:${mps_server%/*} "$mps_control" -f >by-hand.log 2>&1 &
  daemon_pid=$!
  sleep 2
  if command -v setpriv >/dev/null; then
    # shellcheck disable=SC2016
    mps_seen "another user sets the default percentage to 33" "$(CUDA_MPS_PIPE_DIRECTORY=$pipe timeout 20 setpriv --reuid 65534 --clear-groups "$mps_control" <<<"set_default_active_thread_percentage 33" 2>&1 || :)"
    mps_seen "and it is" "$(mps_ask "$pipe" get_default_active_thread_percentage)"
    mps_seen "another user says quit" "$(CUDA_MPS_PIPE_DIRECTORY=$pipe timeout 20 setpriv --reuid 65534 --clear-groups "$mps_control" <<<quit 2>&1 || :)"
    mps_seen "and the daemon" "$(kill -0 "$daemon_pid" 2>/dev/null && echo runs || echo has ended)"
  else
    skipped "what others than root may ask of MPS" "this machine has no setpriv"
  fi
  mps_ask "$pipe" quit >/dev/null
  for _ in {1..50}; do
    kill -0 "$daemon_pid" 2>/dev/null || break
    sleep 0.1
  done
  kill "$daemon_pid" 2>/dev/null || :
  wait "$daemon_pid" || :
  mps_seen "after quit there are still" "$(cd "$pipe" && stat -c '%A %n' -- *)"
  mps_seen "an option that it does not know, and its status" "$(CUDA_MPS_PIPE_DIRECTORY=$pipe timeout 5 "$mps_control" -f -no-such-option 2>&1 </dev/null | tr -d '\000' | head -n 1; echo "${PIPESTATUS[0]}")"
  rm -rf "$pipe"
}

# mps_users: the multi-user server, or the driver that is needed.
mps_users() {
  sed -i 's/^\[enforcement\]$/[enforcement]\nmps_users = "all"/' config.toml
  grep -q '^mps_users' config.toml || printf '[enforcement]\nmps_users = "all"\n' >>config.toml
  no_daemon
  daemon
  run gpuledger grant --mode mps --memory 1GiB --gpu 0 --label mps
  reference >mps.grant
  mps_until '.problem == "" or (.problem | contains("-multiuser-server"))' || die "the MPS daemon for all users is not ready: $(mps_state .problem)"
  mps_seen "the multi-user server" "$(mps_state 'if .problem == "" then "serves all users: \(.anybody)" else .problem end')"
  run gpuledger release "$(cut -d. -f1 mps.grant)"
  mps_gone
  sed -i '/^mps_users/d' config.toml
}

# pytorch: where this machine has it, in an image that is the machine's own file system: the grant is the GPU, its normal error beyond it, and on.
pytorch() {
  local python name
  chapter "PyTorch"
  python=$(command -v python3 || :)
  if [ -z "$python" ] || ! "$python" -c 'import torch; assert torch.cuda.is_available()' >/dev/null 2>&1; then
    skipped "PyTorch" "this machine has none that sees the GPU"
    return
  fi
  mkdir upper
  mount -t tmpfs tmpfs upper # what is written over the machine's own files; not below them
  mkdir upper/files upper/work
  for name in default expandable_segments:True backend:cudaMallocAsync; do
    start torch --memory "${part}MiB"
    run gpuledger-runtime --root run delete --force torch
    mount -t overlay -o "lowerdir=/,upperdir=$PWD/upper/files,workdir=$PWD/upper/work" overlay torch/rootfs
    mkdir -p torch/rootfs/tmp/story
    cp "$OLDPWD/test/testdata/story.py" torch/rootfs/tmp/story
    edit torch ".process.env += [\"PYTORCH_CUDA_ALLOC_CONF=${name/default/}\", \"HOME=/tmp\"] | .process.args = [\"$python\", \"/tmp/story/story.py\", \"$part\", \"$each\"]"
    run gpuledger-runtime --root run run --bundle torch torch
    result "PyTorch, $name"
    umount torch/rootfs
    run gpuledger release "$(cut -d. -f1 torch.grant)"
    rm -rf --one-file-system torch
  done
  run "$python" "$OLDPWD/test/testdata/story.py" 0 "$each"
  result "PyTorch natively"
}

# refusals: what the card's own driver must not get to see.
refusals() {
  chapter "Without a grant"
  bundle greedy '.process.env += ["NVIDIA_VISIBLE_DEVICES=all"]'
  refused visible-devices-all gpuledger-runtime --root run run --bundle greedy greedy
  result "NVIDIA_VISIBLE_DEVICES=all without a grant"
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
  for container in $(ls run 2>/dev/null); do
    runc --root run delete --force "$container" || :
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
