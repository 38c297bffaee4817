# mps.sh: NVIDIA's MPS, item by item of docs/adr/0086.
# For ../test-gpu.sh, which has the functions that the chapters share.
# shellcheck shell=bash disable=SC2154 # each, long, part and status are set there

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
  local pipe daemon_pid i status=0
  pipe=$(mktemp -d /tmp/mps-XXXXXX)
  chmod 755 "$pipe"
  CUDA_VISIBLE_DEVICES=99 CUDA_MPS_PIPE_DIRECTORY=$pipe CUDA_MPS_LOG_DIRECTORY=$pipe PATH=$PATH:${mps_server%/*} timeout 5 "$mps_control" -f >by-hand.log 2>&1 || status=$?
  mps_seen "a daemon without a GPU ends (124: it was killed after 5 s)" "status $status, prints: $(tail -n 3 by-hand.log)"
  find "$pipe" -mindepth 1 -delete # the sockets of the one that was killed
  CUDA_VISIBLE_DEVICES=$(gpu uuid 0) CUDA_MPS_PIPE_DIRECTORY=$pipe CUDA_MPS_LOG_DIRECTORY=$pipe PATH=$PATH:${mps_server%/*} "$mps_control" -f >by-hand.log 2>&1 &
  daemon_pid=$!
  for ((i = 0; i < 600; i++)); do # until it listens
    if [ -S "$pipe/control" ] && [ -S "$pipe/control_privileged" ]; then break; fi
    kill -0 "$daemon_pid" 2>/dev/null || break
    sleep 0.1
  done
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
  mps_seen "an option that it does not know, and its status" "$(CUDA_MPS_PIPE_DIRECTORY=$pipe timeout 60 "$mps_control" -f -no-such-option 2>&1 </dev/null | tr -d '\000' | head -n 1; echo "${PIPESTATUS[0]}")"
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
