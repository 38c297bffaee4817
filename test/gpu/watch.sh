# watch.sh: what gpuledgerd finds, and what its look at the GPUs costs.
# For ../test-gpu.sh, which has the functions that the chapters share.
# shellcheck shell=bash disable=SC2046,SC2154,SC2207 # pids are words; each, long, part and status are set there

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
    ! found found outside-ledger "(gpu) of the node" || break
    sleep 0.1
  done
  kill -9 "$node"
  found found outside-ledger "(gpu) of the node" || die "gpuledgerd should have found process $node: $(tail -n 3 daemon.log)"
  printf -- '- a program of the node: found after %s s: `%s`\n' "$((SECONDS - before))" "$(found_text found outside-ledger "(gpu) of the node")" >>report
  no_daemon
}

# found EVENT KIND [TEXT]: whether gpuledgerd has recorded it, with this text in it. (A program of the chapter before that has
# not quite ended is found, too.)
found() { [ -n "$(found_text "$@")" ]; }

found_text() {
  jq -r --arg event "$1" --arg kind "$2" --arg text "${3:-}" \
    'select(.action == $event and .finding == $kind) | .message | select(contains($text))' audit.jsonl 2>/dev/null | head -n 1
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

# ticks PID...: processor time of processes, with that of children they have waited for. One may have ended meanwhile.
ticks() { { sed 's/.*) //' $(printf '/proc/%s/stat ' "$@") 2>/dev/null || :; } | awk '{ t += $12 + $13 + $14 + $15 } END { print t }'; }
