#!/bin/bash
# packaging/systemd.sh: tests MPS daemons under a real systemd. It installs bin/ and the units in a
# Debian 12 as the packages do, and boots it in namespaces of its own. It checks which process
# starts, keeps and ends the daemons. The GPUs and NVIDIA's MPS are stand-ins.
# However this ends, every container and service that it has started ends with it.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin LC_ALL=C

if [ -z "${GPULEDGER_TEST_PRIVATE:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "packaging/systemd.sh: it takes root" >&2; exit 1; }
  GPULEDGER_TEST_PRIVATE=1 exec unshare --mount --pid --fork --kill-child --mount-proc --propagation private "packaging/systemd.sh" "$@"
fi

. packaging/booted.sh
directory systemd
step() { echo "== $*"; }

debian
cp "$(command -v runc)" "$(command -v busybox)" "$root/usr/bin/"
cp bin/gpuledger bin/gpuledger-runtime bin/gpuledgerd "$root/usr/bin/"
cp packaging/systemd/* "$root/usr/lib/systemd/system/"
test/fakedriver/build.sh "$root/opt/driver"
CGO_ENABLED=0 go build -p 2 -trimpath -o "$root/opt/driver/usr/bin/nvidia-cuda-mps-control" ./test/fakemps
ln "$root/opt/driver/usr/bin/nvidia-cuda-mps-control" "$root/opt/driver/usr/bin/nvidia-cuda-mps-server"
mkdir -p "$root/etc/gpuledger"
cat >"$root/etc/gpuledger/config.toml" <<'CONFIG'
engine = "none"
[inventory]
source = "simulated"
file = "/etc/gpuledger/node.json"
driver_root = "/opt/driver"
[daemon]
interval = "100ms"
CONFIG
boot
inside mount --make-rshared / # as systemd does where it is not in a container
inside gpuledger inventory simulate --gpus 2 --memory 16GiB --out /etc/gpuledger/node.json
inside gpuledger inventory refresh >/dev/null
inside systemctl start gpuledgerd || { inside journalctl --no-pager -n 30 >&2; fail "gpuledgerd does not start"; }

# grant ARG...: makes a grant and prints its reference.
grant() { inside gpuledger grant --mode mps "$@" 2>>"$work/log"; }
daemons() { inside sh -c 'ls /run/gpuledger/mps 2>/dev/null' || true; }
state() { inside cat "/run/gpuledger/mps/$name/state.json" 2>/dev/null | jq -r "$1"; }
is_ready() { [ "$(daemons | wc -l)" = 1 ] && name=$(daemons) && [ "$(state '.problem | length')" = 0 ]; }
unit_of() { inside systemd-escape --path --template=gpuledger-mps@.service "/run/gpuledger/mps/$1"; }
unit_is() { [ "$(inside systemctl is-active "$unit" || true)" = "$1" ]; }
main_pid() { inside systemctl show --property MainPID --value "$1"; }
processes() { echo "$(main_pid "$unit") $(state '"\(.daemon.pid) \(.daemon.start) \(.servers)"')"; }
journal_has() { inside journalctl --no-pager -u gpuledgerd | grep -qF -- "$1"; }

# client ID REFERENCE: starts a container that exchanges messages with its MPS server all the time.
client() {
  local bundle=$root/srv/$1
  mkdir -p "$bundle/rootfs/bin" "$bundle/rootfs/tmp"
  cp "$root/usr/bin/busybox" "$bundle/rootfs/bin/busybox"
  cp "$root/opt/driver/usr/bin/nvidia-cuda-mps-control" "$bundle/rootfs/bin/client"
  inside sh -c "cd /srv/$1 && runc spec"
  jq --arg grant "$2" '.process.terminal = false | .process.args = ["/bin/busybox", "sh", "-c", "/bin/client 0:64 talk >/tmp/out 2>&1; echo end >>/tmp/out; exec /bin/busybox sleep 3600"]
    | .root.readonly = false | del(.process.rlimits) | .annotations["gpuledger.dev/grant"] = $grant' "$bundle/config.json" >"$bundle/new"
  mv "$bundle/new" "$bundle/config.json"
  inside gpuledger-runtime --root /run/test run --detach --pid-file "/srv/$1/pid" --bundle "/srv/$1" "$1" >"$work/said" 2>&1 </dev/null || { cat "$work/said" >&2; fail "container $1 does not start"; }
  eventually "$1 is a client" grep -qs beat "$bundle/rootfs/tmp/out"
}
beats() { grep -c beat "$root/srv/$1/rootfs/tmp/out"; }
more_beats() { [ "$(beats "$1")" -gt "$before" ]; }
# talks ID WHEN: fails unless the server still answers the client.
talks() {
  before=$(beats "$1")
  eventually "$2: $1 gets answers" more_beats "$1"
  ! grep -q end "$root/srv/$1/rootfs/tmp/out" || fail "$2: $1 is disturbed: $(tail -n 3 "$root/srv/$1/rootfs/tmp/out")"
}

step "the first grant in mode mps starts an instance of the template unit"
one=$(grant --memory 1GiB --compute 25 --gpu 0)
eventually "the daemon is ready" is_ready
unit=$(unit_of "$name")
unit_is active || fail "$unit is $(inside systemctl is-active "$unit")"
[ "$(main_pid "$unit")" = "$(state .daemon.pid)" ] || fail "the unit's process is $(main_pid "$unit"), gpuledgerd's word is $(state .daemon.pid)"
for pid in $(state '.daemon.pid, .servers[].pid'); do
  inside cat "/proc/$pid/cgroup" | grep -q 'gpuledger-mps' || fail "process $pid is not in the unit's cgroup"
  [[ $(inside readlink "/proc/$pid/exe") == /opt/driver/usr/bin/nvidia-cuda-mps-@(control|server) ]] || fail "process $pid is another program"
done
[ "$(inside readlink "/proc/$(state .daemon.pid)/ns/mnt")" != "$(inside readlink /proc/1/ns/mnt)" ] || fail "the daemon has the node's /dev/shm"
for whose in 1 "$(main_pid gpuledgerd)" "$(state .daemon.pid)"; do
  inside grep " /run/gpuledger/mps/$name/pipe " "/proc/$whose/mountinfo" | grep -q nosymfollow || fail "process $whose follows links that clients make"
done
client one "$one"

step "restart, stop, kill of gpuledgerd: the daemon and its client go on, as the processes that they are"
them=$(processes)
for how in "restart gpuledgerd" "kill --signal=KILL gpuledgerd" "stop gpuledgerd"; do
  was=$(main_pid gpuledgerd)
  # shellcheck disable=SC2086 # words
  inside systemctl $how
  talks one "$how"
  unit_is active || fail "$how: $unit is $(inside systemctl is-active "$unit")"
  [ "$how" != "stop gpuledgerd" ] || inside systemctl start gpuledgerd
  other() { local now; now=$(main_pid gpuledgerd); [ "$now" != 0 ] && [ "$now" != "$was" ]; }
  eventually "$how: there is another gpuledgerd" other
  inside rm -f "/run/gpuledger/mps/$name/state.json" # the next one says it anew, once it has asked
  eventually "$how: the daemon is adopted" is_ready
  [ "$(processes)" = "$them" ] || fail "$how: the processes are $(processes), and were $them"
  talks one "after $how"
done
inside systemctl daemon-reload
talks one "daemon-reload"

step "no annotation has systemd move a process into a container's unit (docs/adr/0064)"
mkdir -p "$root/srv/taker/rootfs/bin" && cp "$root/usr/bin/busybox" "$root/srv/taker/rootfs/bin/busybox"
cgroup_of() { inside grep -m 1 -e :devices: -e '^0::' "/proc/$1/cgroup"; }
# takes PID PROPERTY RUNTIME: runs a container whose annotation makes systemd move the process PID
# into its unit.
takes() {
  inside sh -c "cd /srv/taker && rm -f config.json && runc spec"
  jq --arg name "org.systemd.property.$2" --arg value "[uint32 $1]" '.process.terminal = false | .process.args = ["/bin/busybox", "true"] | del(.process.rlimits)
    | .linux.cgroupsPath = "system.slice:test:taker" | .annotations[$name] = $value' "$root/srv/taker/config.json" >"$root/srv/taker/new"
  mv "$root/srv/taker/new" "$root/srv/taker/config.json"
  inside "$3" --root /run/test --systemd-cgroup run --bundle /srv/taker taker >"$work/said" 2>&1 </dev/null
}
inside systemd-run --quiet --unit=bystander sleep 3600
bystander=$(main_pid bystander)
home=$(cgroup_of "$bystander")
for property in PIDs PIDFDs; do
  for whose in "$bystander" "$(inside cat /srv/one/pid)"; do
    ! takes "$whose" "$property" gpuledger-runtime || fail "a container with $property starts"
    grep -q 'gpuledger: refused (gpu-device-rule): ' "$work/said" || fail "$property: $(cat "$work/said")"
  done
done
[ "$(cgroup_of "$bystander")" = "$home" ] || fail "the bystander is in $(cgroup_of "$bystander")"
talks one "a container that would take it"
takes "$bystander" PIDs runc || fail "the bare runtime: $(cat "$work/said")"
[ "$(inside systemctl is-active bystander)" != active ] || fail "the bare runtime takes no process in, so this shows nothing"
inside systemctl reset-failed bystander 2>/dev/null || true

step "its last grant is gone: it is drained, then ended"
inside gpuledger release --force "${one%.*}" >/dev/null
eventually "gpuledgerd says that it waits" journal_has "so it stays until they end"
talks one "drained"
unit_is active || fail "it was ended under a client"
inside gpuledger-runtime --root /run/test delete --force one
eventually "the unit has ended" unit_is inactive
nothing() { [ -z "$(daemons)" ] && ! inside grep -q /run/gpuledger/mps /proc/1/mountinfo; }
eventually "nothing of it is left" nothing
[ "$(inside systemctl show --property Result --value "$unit")" = success ] || fail "the unit has failed"

[ "$(inside systemctl show --property NRestarts --value gpuledgerd)" = 0 ] || fail "gpuledgerd has failed since it was started"

step "one that is killed is told with its container, and started again by its unit"
two=$(grant --memory 1GiB --gpus 2)
eventually "the daemon is ready" is_ready
unit=$(unit_of "$name")
client two "$two"
was=$(main_pid "$unit")
inside systemctl kill --signal=KILL "$unit"
eventually "it is told" journal_has "these containers lost their contexts: [two]"
again() { is_ready && unit_is active && [ "$(main_pid "$unit")" != "$was" ]; }
eventually "it is started again" again
inside gpuledger-runtime --root /run/test delete --force two
inside gpuledger release "${two%.*}" >/dev/null
eventually "the unit has ended" unit_is inactive
eventually "nothing of it is left" nothing

step "one that ends at once is told with its last words"
echo stillborn >"$root/opt/driver/usr/bin/fakemps.moods"
three=$(grant --memory 1GiB --gpu 0)
eventually "its last words are told" journal_has "cannot find a GPU"
rm "$root/opt/driver/usr/bin/fakemps.moods"
eventually "the daemon is ready" is_ready
unit=$(unit_of "$name")
inside gpuledger release "${three%.*}" >/dev/null
eventually "the unit has ended" unit_is inactive
eventually "nothing of it is left" nothing

step "what a removal of the package does ends a daemon whose grant is free, and unmounts its files"
grant --memory 1GiB --gpu 0 >/dev/null
eventually "the daemon is ready" is_ready
unit=$(unit_of "$name")
inside systemctl stop gpuledgerd
unit_is active || fail "$unit is $(inside systemctl is-active "$unit") without gpuledgerd"
inside systemctl stop 'gpuledger-mps@*.service'
unit_is inactive || fail "$unit is $(inside systemctl is-active "$unit")"
! inside grep /run/gpuledger/mps /proc/1/mountinfo || fail "this is still mounted"

[ -z "$(inside systemctl list-units --failed --no-legend --plain 'gpuledger*')" ] || fail "units have failed: $(inside systemctl list-units --failed --no-legend)"
echo ok
