#!/bin/bash
# packaging/units.sh: tests under a real systemd that no container reaches a GPU through a unit of
# another's name, with Debian's runc and the newest, on this machine's cgroups and on cgroup v2
# alone. It boots a Debian 12 in namespaces of its own, as systemd.sh does. The GPUs are simulated:
# a device node that the cgroup lets through has no driver (ENXIO).
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin LC_ALL=C

if [ -z "${GPULEDGER_TEST_PRIVATE:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "packaging/units.sh: it takes root" >&2; exit 1; }
  test/engines/build.sh runc
  GPULEDGER_TEST_PRIVATE=1 unshare --mount --pid --fork --kill-child --mount-proc --propagation private "packaging/units.sh" "$@"
  [ -e /sys/fs/cgroup/cgroup.controllers ] || # else that was cgroup v2 already
    GPULEDGER_TEST_PRIVATE=1 test/rig/cgroup2.sh unshare --pid --fork --kill-child --mount-proc "packaging/units.sh" "$@"
  echo ok
  exit
fi

. packaging/booted.sh
directory units
layout="this machine's cgroups"
[ ! -e /sys/fs/cgroup/cgroup.controllers ] || layout="cgroup v2 alone"
step() { echo "== $layout, ${runc:-}: $*"; }

debian
mkdir -p "$root"/{etc/gpuledger,opt/runc-debian,opt/runc-newest,srv/rootfs/bin,srv/rootfs/proc,srv/rootfs/dev}
cp bin/gpuledger bin/gpuledger-runtime "$root/usr/bin/"
cp "$(command -v runc)" "$root/opt/runc-debian/runc"
cp .cache/engines/runc/runc "$root/opt/runc-newest/runc"
cp "$(command -v busybox)" "$root/srv/rootfs/bin/"
boot
inside mount --make-rshared / # as systemd does where it is not in a container

# config: a node with two GPUs behind the runtime $runc.
config() {
  cat >"$root/etc/gpuledger/config.toml" <<CONFIG
engine = "none"
[runtime]
path = ["/opt/$runc/runc"]
[inventory]
source = "simulated"
file = "/etc/gpuledger/node.json"
CONFIG
  inside gpuledger inventory simulate --gpus 2 --memory 16GiB --out /etc/gpuledger/node.json
  inside sh -c 'for gpu in 0 1; do [ -e /dev/nvidia$gpu ] || mknod /dev/nvidia$gpu c 195 $gpu; done'
  inside gpuledger inventory refresh >/dev/null
}

# bundle ID CGROUPSPATH [GRANT [ANNOTATION VALUE]]: a container whose first process writes to /tmp
# whether it can open the first GPU.
bundle() {
  local bundle=$root/srv/$1
  mkdir -p "$bundle/tmp"
  rm -f "$bundle/tmp/out"
  # shellcheck disable=SC2016 # jq's
  jq -n --arg path "$2" --arg grant "${3:-}" --arg key "${4:-}" --arg value "${5:-}" --arg tmp "/srv/$1/tmp" '{ociVersion: "1.0.2",
    process: {args: ["/bin/busybox", "sh", "-c", "trap \"exit 0\" TERM; mknod /tmp/gpu c 195 0; (: </tmp/gpu) 2>/tmp/new; mv /tmp/new /tmp/out; while :; do sleep 0.1; done"],
      cwd: "/", env: ["PATH=/bin"], capabilities: {bounding: ["CAP_MKNOD"], effective: ["CAP_MKNOD"], permitted: ["CAP_MKNOD"]}},
    root: {path: "/srv/rootfs", readonly: true},
    mounts: [{destination: "/proc", type: "proc", source: "proc"}, {destination: "/dev", type: "tmpfs", source: "tmpfs"},
      {destination: "/tmp", type: "bind", source: $tmp, options: ["bind"]}],
    annotations: ({} + (if $grant != "" then {"gpuledger.dev/grant": $grant} else {} end) + (if $key != "" then {($key): $value} else {} end)),
    linux: {cgroupsPath: $path, namespaces: [{type: "mount"}, {type: "pid"}, {type: "ipc"}, {type: "uts"}, {type: "network"}],
      resources: {devices: [{allow: false, access: "rwm"}, {allow: true, type: "c", major: 1, minor: 3, access: "rwm"}]}}}' >"$bundle/config.json"
}
mkdir -p "$root/srv/rootfs/tmp"

# as ROOT ID PROGRAM: starts the container, as an engine would, in a state directory of its own.
as() { inside "$3" --root "/run/$1" --systemd-cgroup run --detach --bundle "/srv/$2" "$2" >"$work/said" 2>&1 </dev/null; }
starts() { as "${2:-test}" "$1" gpuledger-runtime || { cat "$work/said" >&2; fail "container $1 does not start"; }; }
ends() { inside gpuledger-runtime --root "/run/${2:-test}" delete --force "$1" >"$work/said" 2>&1 || { cat "$work/said" >&2; fail "container $1 does not end"; }; }
refused() {
  ! as "${3:-test}" "$1" gpuledger-runtime || fail "container $1 starts"
  grep -q "gpuledger: refused ($2): " "$work/said" || fail "container $1: $(cat "$work/said")"
}
said() { eventually "$1 says what it opens" test -s "$root/srv/$1/tmp/out"; grep -q "$2" "$root/srv/$1/tmp/out" || fail "$3: $(cat "$root/srv/$1/tmp/out")"; }
closed() { said "$1" 'Operation not permitted' "$1 opens a GPU"; }
opens() { said "$1" 'No such device' "$1 does not open its GPU"; }
active() { [ "$(inside systemctl is-active "$1" || true)" = active ] || fail "unit $1 is $(inside systemctl is-active "$1")"; }
# now_opens ID TEXT: whether a process that joins the container opens the GPU now.
now_opens() {
  inside gpuledger-runtime --root /run/test exec "$1" /bin/busybox sh -c ': </tmp/gpu' >"$work/said" 2>&1 || true
  grep -q "$2" "$work/said" || { cat "$work/said" >&2; return 1; }
}
has_failed() { [ "$(inside systemctl is-active "$1" || true)" = failed ]; }

for runc in runc-debian runc-newest; do
  config

  step "what engines name so starts beside others, and again"
  bundle one system.slice:docker:one
  bundle two system.slice:docker:two
  pod=kubepods-burstable-pod1.slice
  [ "$layout" = "cgroup v2 alone" ] || pod=kubepods.slice # on v1 systemd 252 moves what is in a new slice of a slice out of its scope
  bundle pod "$pod:cri-containerd:pod"
  bundle crio kubepods.slice:crio:crio
  bundle podman machine.slice:libpod:podman
  bundle plain ""
  for _ in 1 2; do
    for id in one two pod crio podman plain; do
      rm -f "$root/srv/$id/tmp/out"
      starts "$id"
      closed "$id"
    done
    for id in one two pod crio podman plain; do ends "$id"; done
  done

  step "a unit of another's name, in another slice and in the same, under the same id elsewhere"
  bundle first system.slice:docker:first
  starts first
  for path in system.slice:docker:first nine.slice:docker:first -.slice:docker:first; do
    bundle second "$path"
    refused second rules-not-enforced
    mkdir -p "$root/srv/other" && bundle first "$path"
    refused first rules-not-enforced other
    active docker-first.scope
  done
  if [ "$layout $runc" = "cgroup v2 alone runc-debian" ]; then
    bundle second nine.slice:docker:first
    as test second "/opt/$runc/runc" || fail "the bare runtime: $(cat "$work/said")"
    said second 'No such device' "the bare runtime keeps it closed, so this shows nothing"
    inside "/opt/$runc/runc" --root /run/test delete --force second >"$work/said" 2>&1 || true
    inside systemctl reset-failed 2>/dev/null || true
  fi
  ends first

  step "the unit of a container with a GPU"
  grant=$(inside gpuledger grant --memory 1GiB --gpu 0)
  bundle holder system.slice:docker:holder "$grant"
  starts holder
  opens holder
  for path in evil.slice:docker:holder system.slice:docker:holder; do
    bundle stranger "$path"
    refused stranger injection-impossible
    active docker-holder.scope
  done
  inside systemctl daemon-reload
  now_opens holder 'No such device' || fail "a reload of systemd has taken the GPU away"
  ends holder
  if [ "$runc" = runc-debian ]; then # newer ones list devices without a name, too
    ends holder
    inside rm /dev/char/195:0
    rm -f "$root/srv/holder/tmp/out"
    starts holder
    inside systemctl daemon-reload
    now_opens holder 'Operation not permitted' || fail "systemd closes nothing without the name in /dev/char, so this shows nothing"
    inside gpuledger inventory refresh >/dev/null
  fi
  ends holder

  step "a slice takes no container"
  for path in system.slice:x:user.slice :x:-.slice system.slice:x:fresh.slice; do
    bundle slice "$path"
    refused slice rules-not-enforced
  done

  step "a unit that has failed is no way out, and does not keep its container from starting again"
  bundle again system.slice:docker:again "" org.systemd.property.RuntimeMaxUSec "uint64 1000000"
  starts again
  eventually "the unit fails" has_failed docker-again.scope
  inside "/opt/$runc/runc" --root /run/test delete --force again >/dev/null 2>&1 || true
  bundle again system.slice:docker:again
  starts again
  active docker-again.scope
  closed again
  ends again
  inside gpuledger release --force "${grant%.*}" >/dev/null
done
