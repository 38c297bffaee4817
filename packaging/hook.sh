#!/bin/bash
# packaging/hook.sh [ENGINE...]: tests gpuledger-hook alone, in front of runc and crun, on cgroup v1
# and on v2, with cgroups that systemd makes and without. ENGINE is podman or crio (default: both).
# It boots a Debian 12 with its own systemd and has it reload, execute itself again and change
# properties of units while containers run. What it finds is the table of docs/hook.md. The GPUs,
# their driver and NVIDIA's MPS are stand-ins: a node that the cgroup lets through has no driver
# (ENXIO). However this ends, all that it has started ends with it.
# shellcheck disable=SC2015 # fail ends it
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin LC_ALL=C

engines=(podman crio)
[ $# = 0 ] || engines=("$@")
if [ -z "${GPULEDGER_TEST_LAYOUT:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "packaging/hook.sh: it takes root" >&2; exit 1; }
  test/engines/build.sh crictl crio runc
  private=(unshare --mount --pid --fork --kill-child --mount-proc --propagation private)
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    echo "packaging/hook.sh: this machine has no cgroup v1: the hook on it is not tested"
    GPULEDGER_TEST_LAYOUT=v2 "${private[@]}" packaging/hook.sh "${engines[@]}"
  else
    # crun refuses v1 beside v2, and so systemd gets an option of the kernel's command line
    SYSTEMD_OPTIONS=systemd.legacy_systemd_cgroup_controller=1 GPULEDGER_TEST_LAYOUT=v1 test/rig/cgroup1.sh "${private[@]}" packaging/hook.sh "${engines[@]}"
    GPULEDGER_TEST_LAYOUT=v2 test/rig/cgroup2.sh "${private[@]}" packaging/hook.sh "${engines[@]}"
  fi
  echo ok
  exit
fi
layout=$GPULEDGER_TEST_LAYOUT

. packaging/booted.sh
directory hook
engine=- runtime=- manager=-
step() { printf '== %3d s: %s, %s, %s, %s: %s\n' "$SECONDS" "$layout" "$engine" "$runtime" "$manager" "$*"; }

declare -A names=([podman]="Podman 4.3" [crio]="CRI-O 1.34" [runc]="runc 1.1" [crun]="crun 1.8" [newest]="runc 1.5")
declare -A programs=([runc]=/usr/sbin/runc [crun]=/usr/bin/crun [newest]=/opt/newest/runc) states=([runc]=/run/runc [crun]=/run/crun [newest]=/run/runc)

# node: a Debian with both engines at their defaults but for what this machine's root lacks.
node() {
  local weak=false loader library
  [ $((0x$(awk '$1 == "CapEff:" { print $2 }' /proc/self/status) >> 24 & 1)) = 1 ] || weak=true
  debian
  rm -f "$root/etc/systemd/system/multi-user.target.wants/containerd.service"
  cp bin/gpuledger bin/gpuledger-hook bin/gpuledgerd .cache/engines/crio/{crio,pinns} .cache/engines/crictl/crictl "$root/usr/bin/"
  install -D -t "$root/opt/newest" .cache/engines/runc/runc
  cp packaging/systemd/* "$root/usr/lib/systemd/system/"
  install -D -m 644 -t "$root/usr/lib/gpuledger/shim" bin/shim/*
  mkdir -p "$root"/{etc/gpuledger,etc/containers,etc/crio,opt/runtimes,opt/newest,packages,srv/out,srv/image/{bin,dev,proc,sys,tmp,run,etc,lib64}} "$root/usr/share/containers/oci/hooks.d"
  test/fakedriver/build.sh "$root/opt/driver"
  CGO_ENABLED=0 go build -p 2 -trimpath -o "$root/opt/driver/usr/bin/nvidia-cuda-mps-control" ./test/fakemps
  ln "$root/opt/driver/usr/bin/nvidia-cuda-mps-control" "$root/opt/driver/usr/bin/nvidia-cuda-mps-server"
  # the image: a shell, a client of CUDA and one of MPS, and a C library for the first
  cp "$root/bin/busybox" "$root/srv/image/bin/"
  cp "$root/opt/driver/usr/bin/nvidia-cuda-mps-control" "$root/srv/image/bin/client"
  ln -s busybox "$root/srv/image/bin/sh"
  gcc -O1 -w -o "$root/srv/image/bin/gpu" test/testdata/gpu.c
  loader=$(realpath /lib64/ld-linux-x86-64.so.2)
  library=${loader%/*}
  mkdir -p "$root/srv/image$library"
  cp "$loader" "$library"/lib{c.so.6,dl.so.2,pthread.so.0} "$root/srv/image$library/"
  ln -s "$loader" "$root/srv/image/lib64/ld-linux-x86-64.so.2"
  # What a container does: it opens GPUs 0 and 1 and the control node again and again, by nodes that
  # it makes itself.
  cat >"$root/srv/image/bin/probe" <<'PROBE'
#!/bin/sh
PATH=/bin
b() { busybox "$@"; }
b mknod /dev/probe0 c 195 0; b mknod /dev/probe1 c 195 1; b mknod /dev/probe255 c 195 255
i=0
while :; do
  i=$((i + 1)) line=
  for n in 0 1 255; do
    said=$(b head -c0 /dev/probe$n 2>&1)
    case $said in *"not permitted"*) line="$line closed" ;; *"No such device or address"*) line="$line open" ;; *"No such file"*) line="$line unmade" ;; *) line="$line $said" ;; esac
  done
  echo "$i$line" >/out/new
  b mv /out/new /out/state
  b sleep 0.1
done
PROBE
  chmod 755 "$root/srv/image/bin/probe"
  printf '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n%s' "$([ "$layout" = v1 ] || ! $weak || echo 'pids_limit = 0')" >"$root/etc/containers/containers.conf"
  printf '[storage]\ndriver = "overlay"\nrunroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n' >"$root/etc/containers/storage.conf"
  echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$root/etc/containers/policy.json"
  # A root without CAP_SYS_RESOURCE cannot raise limits, as crun does for its device rules, or give a
  # negative OOM score; on v2 such a machine may have no controllers. crun 1.8 refuses the version that
  # CRI-O 1.34 writes, and on v1 its way to say "no limit".
  gcc -shared -fPIC -o "$root/opt/runtimes/limit.so" -x c - <<'LIMIT'
#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit) {
  return resource == RLIMIT_MEMLOCK ? 0 : (int)syscall(SYS_prlimit64, 0, resource, limit, 0);
}
LIMIT
  local name edit='.ociVersion = "1.0.2" | if (.linux.resources.pids.limit // 1) <= 0 then del(.linux.resources.pids) else . end'
  $weak && edit+=' | if (.process.oomScoreAdj // 0) < 0 then .process.oomScoreAdj = 0 else . end | (.process.capabilities // empty) |= map_values(map(select(. != "CAP_SYS_RESOURCE")))'
  [ "$layout" = v1 ] || ! $weak || edit+=' | .linux.resources |= {devices}'
  for name in runc crun newest; do
    cat >"$root/opt/runtimes/$name" <<RUNTIME
#!/bin/sh
bundle=. previous= create=
for word; do
  case \$previous in --bundle | -b) bundle=\$word ;; esac
  case \$word in --bundle=*) bundle=\${word#*=} ;; create) create=yes ;; esac
  previous=\$word
done
if [ -n "\$create" ] && grep -q '"ociVersion": *"1[.][^0]' "\$bundle/config.json"; then
  jq -c '$edit' "\$bundle/config.json" >"\$bundle/config.json.new" && mv "\$bundle/config.json.new" "\$bundle/config.json"
fi
$($weak && [ "$name $layout" = "crun v2" ] && echo 'export LD_PRELOAD=/opt/runtimes/limit.so')
exec ${programs[$name]} "\$@"
RUNTIME
    chmod 755 "$root/opt/runtimes/$name"
  done
  cat >"$root/etc/gpuledger/config.toml" <<'CONFIG'
engine = "none"
[inventory]
source = "simulated"
file = "/etc/gpuledger/node.json"
driver_root = "/opt/driver"
[daemon]
interval = "100ms"
CONFIG
  cat >"$root/etc/crio/crio.conf" <<'CONFIG'
[crio]
storage_driver = "overlay"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "systemd"
conmon_cgroup = "system.slice"
pinns_path = "/usr/bin/pinns"
default_capabilities = ["CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "KILL", "MKNOD"]
[crio.runtime.runtimes.runc]
runtime_path = "/opt/runtimes/runc"
runtime_root = "/run/runc"
monitor_path = "/usr/bin/conmon"
[crio.runtime.runtimes.newest]
runtime_path = "/opt/runtimes/newest"
runtime_root = "/run/runc"
monitor_path = "/usr/bin/conmon"
[crio.runtime.runtimes.crun]
runtime_path = "/opt/runtimes/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/bin/conmon"
[crio.nri]
enable_nri = false # gpuledgerd would be the first to see a container
[crio.image]
pause_image = "localhost/image:1"
pause_command = "/bin/busybox sleep 36000"
signature_policy = "/etc/containers/policy.json"
CONFIG
  printf '[Unit]\nDescription=CRI-O\n[Service]\nType=notify\nExecStart=/usr/bin/crio\nKillMode=process\n' >"$root/usr/lib/systemd/system/crio.service"
  printf 'runtime-endpoint: unix:///run/crio/crio.sock\nimage-endpoint: unix:///run/crio/crio.sock\ntimeout: 60\n' >"$root/etc/crictl.yaml"
}

# The engines. run NAME REFERENCE SCRIPT [VARIABLE]: starts a container that runs the script, by the
# name of the runtime in $runtime; the words of the engine are in $work/said. id_of, ends NAME.
podman_run() {
  inside podman --runtime "/opt/runtimes/$runtime" --cgroup-manager "$manager" run --detach --name "$1" --network none "${options[@]}" --annotation "gpuledger.dev/grant=$2" ${4:+--env "$4"} \
    --volume "/srv/out/$1:/out" --volume /srv/book:/run/fakedriver --rootfs /srv/image /bin/sh -c "$3" >"$work/said" 2>&1
}
options=(--cap-add MKNOD)
podman_id() { inside podman inspect --format '{{.Id}}' "$1"; }
podman_ends() { inside podman rm --force --time 0 "$1" >/dev/null; }
podman_scope() { echo "libpod-$(podman_id "$1").scope"; }

declare -A pods=() ids=()
namespaces='{"network": 2, "pid": 1}'
crio_run() {
  local dir=$root/srv/pods
  mkdir -p "$dir" "$root/var/log/pods/$1"
  local parent=pods.slice
  [ "$manager" = systemd ] || parent=/pods
  jq -n --arg n "$1" --arg parent "$parent" --argjson namespaces "$namespaces" '{metadata: {name: $n, namespace: "team", uid: ("uid-" + $n), attempt: 0}, log_directory: ("/var/log/pods/" + $n),
    linux: {cgroup_parent: $parent, security_context: {namespace_options: $namespaces}}}' >"$dir/pod.json"
  jq -n --arg n "$1" --arg grant "$2" --argjson namespaces "$namespaces" --arg script "$3" --arg variable "${4:-}" '{metadata: {name: $n}, image: {image: "localhost/image:1"}, log_path: "log", command: ["/bin/sh", "-c", $script],
    envs: ([{key: "GPULEDGER_GRANT", value: $grant}, ($variable | select(. != "") | {key: (. / "=" | .[0]), value: (. / "=" | .[1])})] | map(select(.value != ""))),
    mounts: [{container_path: "/out", host_path: ("/srv/out/" + $n)}, {container_path: "/run/fakedriver", host_path: "/srv/book"}],
    linux: {security_context: {namespace_options: $namespaces, capabilities: {add_capabilities: ["MKNOD"]}}}}' >"$dir/container.json"
  pods[$1]=$(inside crictl runp --runtime "$runtime" /srv/pods/pod.json 2>"$work/said") || return 1
  ids[$1]=$(inside crictl create "${pods[$1]}" /srv/pods/container.json /srv/pods/pod.json 2>"$work/said") &&
    inside crictl start "${ids[$1]}" >/dev/null 2>"$work/said" || { inside crictl rmp --force "${pods[$1]}" >/dev/null; return 1; }
}
crio_id() { echo "${ids[$1]}"; }
crio_ends() { inside crictl stop --timeout 0 "${ids[$1]}" >/dev/null && inside crictl rmp --force "${pods[$1]}" >/dev/null; }
crio_scope() { echo "crio-${ids[$1]}.scope"; }
readonly hooks=/usr/share/containers/oci/hooks.d # of both engines

run() { mkdir -p "$root/srv/out/$1"; chmod 777 "$root/srv/out/$1"; rm -f "$root/srv/out/$1"/*; "${engine}_run" "$@"; }
starts() { run "$@" || { cat "$work/said" >&2; inside tail -n 3 /var/log/gpuledger/audit.jsonl >&2 || true; fail "container $1 does not start"; }; }
ends() { "${engine}_ends" "$1"; }
# refused CODE NAME REFERENCE SCRIPT [VARIABLE]: of crun the engines show that a hook failed; the
# audit log has the reason.
refused() {
  local code=$1
  shift
  ! run "$@" || fail "container $1 starts"
  [ "$engine" != podman ] || inside podman rm --force "$1" >/dev/null 2>&1 || true
  inside tail -n 1 /var/log/gpuledger/audit.jsonl | grep -q "\"code\":\"$code\"" || { cat "$work/said" >&2; inside tail -n 2 /var/log/gpuledger/audit.jsonl >&2; fail "container $1 is not refused by $code"; }
}
grant() { inside gpuledger grant "$@" 2>>"$work/log"; }
state_of() { inside gpuledger grants --json 2>/dev/null | jq -r --arg id "${1%.*}" '.grants[] | select(.id == $id) | .state'; }
release() { inside gpuledger release --force "${1%.*}" >/dev/null; }

# sees NAME WHAT WHEN: fails unless the container finds WHAT (closed, open or, where it may not make
# the node, unmade: of GPU 0, GPU 1 and the control node) in a look that it begins after now.
sees() {
  local file=$root/srv/out/$1/state now count rest
  eventually "$1 looks" test -s "$file"
  read -r now _ <"$file"
  later() { read -r count rest <"$file" && [ "$count" -gt $((now + 1)) ]; }
  eventually "$1 looks again" later
  [ "$rest" = "$2" ] || fail "$3: $1 sees \"$rest\", not \"$2\""
}
says() { eventually "$1 says something" test -s "$root/srv/out/$1/said"; grep -qF -- "$2" "$root/srv/out/$1/said" || fail "$1 says $(cat "$root/srv/out/$1/said"), not $2"; }
devices_of() { inside systemctl show --property DeviceAllow --value "$("${engine}_scope" "$1")"; }

# everybody WHEN: what each container sees, whatever systemd has done.
everybody() {
  sees stranger "closed closed closed" "$1"
  sees one "closed open open" "$1"
  [ "$manager" = cgroupfs ] || ! devices_of one | grep -q 'char/195:0' || fail "$1: the unit lists another GPU"
}

mps_is_ready() { inside sh -c 'cat /run/gpuledger/mps/*/state.json 2>/dev/null' | jq -e '.problem == ""' >/dev/null 2>&1; }
mps_is_gone() { [ -z "$(inside ls /run/gpuledger/mps 2>/dev/null)" ]; }

reload() {
  inside systemctl daemon-reload
  everybody daemon-reload
}

# nri true|false: CRI-O with NRI, and gpuledgerd at it, or without.
nri() {
  connected() { [ "$(inside journalctl --no-pager -u gpuledgerd | grep -c 'in step with cri-o')" -gt "$before" ]; }
  local before
  before=$(inside journalctl --no-pager -u gpuledgerd | grep -c 'in step with cri-o' || true)
  sed -i "s/^enable_nri = [a-z]*/enable_nri = $1/" "$root/etc/crio/crio.conf"
  inside systemctl restart crio
  eventually "CRI-O answers" answers
  [ "$1" = false ] || eventually "gpuledgerd is at CRI-O's NRI" connected
}

story() {
  local one two how unit what
  step "a container without a GPU, a grant, and what is not granted"
  starts stranger "" "exec /bin/probe"
  sees stranger "closed closed closed" "before"
  one=$(grant --memory 1GiB --gpu 1)
  starts one "$one" "exec /bin/probe"
  everybody "at first"
  [ "$(state_of "$one")" = bound ] || fail "the grant is $(state_of "$one")"
  refused grant-in-use again "$one" "exec /bin/probe"
  refused visible-devices-all greedy "" "exec /bin/probe" NVIDIA_VISIBLE_DEVICES=all

  step "systemd reloads, executes itself again, changes the unit"
  [ "$manager" = cgroupfs ] || for how in "daemon-reload" "daemon-reexec" "set-property --runtime UNIT TasksMax=1000" "set-property UNIT TasksMax=900" "set-property --runtime UNIT DeviceAllow=/dev/char/10:229\ rw" "daemon-reload"; do
    for unit in one stranger; do
      unit=$("${engine}_scope" "$unit")
      # crun lists no devices: a unit that lists one opens no other, as its administrator asks
      case $how in *DeviceAllow*) [ "$runtime" != crun ] || continue ;; esac
      eval "inside systemctl ${how/UNIT/$unit}" || fail "$how"
    done
    everybody "$how"
  done
  # with runc an update sets all properties of the unit that the runtime knows
  inside "${programs[$runtime]}" --root "${states[$runtime]}" update --resources /srv/nothing.json "$("${engine}_id" one)" >"$work/said" 2>&1 || { cat "$work/said" >&2; fail "update"; }
  everybody update
  reload
  ends one
  [ "$(state_of "$one")" = free ] || fail "after its end the grant is $(state_of "$one")"
  starts one "$one" "exec /bin/probe"
  everybody "the same grant again"
  ends one
  release "$one"

  step "two GPUs"
  two=$(grant --mode exclusive --gpus 2)
  starts two "$two" "exec /bin/probe"
  sees two "open open open" "two GPUs"
  inside systemctl daemon-reload
  sees two "open open open" "two GPUs, daemon-reload"
  sees stranger "closed closed closed" "beside two GPUs"
  ends two
  release "$two"

  step "mode limit, with the shim"
  one=$(grant --mode limit --memory 1GiB --gpu 0)
  starts limited "$one" "gpu total 900 200 >/out/new 2>&1; busybox mv /out/new /out/said; exec /bin/probe"
  says limited "total 1024 MiB"
  says limited "900 MiB: 0"
  says limited "200 MiB: 2"
  sees limited "open closed open" "mode limit"
  inside systemctl daemon-reload
  sees limited "open closed open" "mode limit, daemon-reload"
  sees stranger "closed closed closed" "beside mode limit"
  ends limited
  release "$one"

  step "mode mps, without a variable"
  one=$(grant --mode mps --memory 1GiB --compute 25 --gpu 0)
  eventually "the daemon is ready" mps_is_ready
  refused injection-impossible own "$one" "exec /bin/probe" CUDA_MPS_PIPE_DIRECTORY=/tmp/mine
  starts client "$one" "client 0:64 >/out/new 2>&1; busybox mv /out/new /out/said; exec /bin/probe"
  says client "mps threads=25"
  says client "CUDA_SUCCESS"
  sees client "open closed open" "mode mps"
  inside systemctl daemon-reload
  sees client "open closed open" "mode mps, daemon-reload"
  sees stranger "closed closed closed" "beside mode mps"
  ends client
  # ACK's page on MPS has pods with hostIPC and hostPID
  options+=(--ipc host --pid host)
  namespaces='{"network": 2, "pid": 2, "ipc": 2}'
  starts client "$one" "client 0:64 >/out/new 2>&1; busybox mv /out/new /out/said; exec /bin/probe"
  says client "mps threads=25"
  says client "CUDA_SUCCESS"
  ends client
  options=(--cap-add MKNOD)
  namespaces='{"network": 2, "pid": 1}'
  two=$(grant --mode mps --memory 2GiB --compute 50 --gpu 0)
  threads_are() { inside sh -c 'cat /run/gpuledger/mps/*/state.json' | jq -e ".threads == $1 and .problem == \"\"" >/dev/null; }
  eventually "the daemon has the larger grant's limits" threads_are 50
  refused injection-impossible smaller "$one" "exec /bin/probe"
  release "$one"
  release "$two"
  eventually "the daemon has ended" mps_is_gone

  step "beside NVIDIA's hook"
  printf '#!/bin/sh\nexec cat >/dev/null\n' >"$root/usr/bin/nvidia-container-runtime-hook"
  chmod 755 "$root/usr/bin/nvidia-container-runtime-hook"
  printf '{"version": "1.0.0", "hook": {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"], "env": ["PATH=/usr/bin"]}, "when": {"always": true}, "stages": ["prestart"]}\n' >"$root$hooks/oci-nvidia-hook.json"
  [ "$engine" != crio ] || inside systemctl restart crio
  one=$(grant --memory 1GiB --gpu 1)
  starts one "$one" "exec /bin/probe"
  everybody "beside NVIDIA's hook"
  ends one
  refused injection-impossible asking "$one" "exec /bin/probe" NVIDIA_VISIBLE_DEVICES=1
  rm "$root$hooks/oci-nvidia-hook.json"
  [ "$engine" != crio ] || inside systemctl restart crio
  release "$one"

  one=$(grant --memory 1GiB --gpu 1)
  if [ "$engine $manager" = "crio systemd" ]; then
    step "beside NRI, which edits the spec: runc leaves devices out of the unit that have no name in /dev/char"
    nri true
    starts one "$one" "exec /bin/probe"
    everybody "beside NRI"
    inside cat "/run/containers/storage/overlay-containers/${ids[one]}/userdata/config.json" | jq -e '.linux.devices | length > 0' >/dev/null || fail "NRI has edited nothing, so this shows nothing"
    reload
    ends one
    nri false
  fi
  if [ "$engine $manager" = "podman systemd" ]; then
    step "the spec has one of the grant's devices: runc 1.1 does not list it, and the hook does"
    inside mknod /dev/nvidia1 c 195 1
    options+=(--device /dev/nvidia1)
    starts one "$one" "exec /bin/probe"
    everybody "beside --device"
    reload
    ends one
    inside rm /dev/nvidia1

    step "a privileged container that is stripped"
    printf '[policy]\nprivileged = "strip"\n' >>"$root/etc/gpuledger/config.toml"
    options=(--privileged)
    if [ "$layout" = v1 ] && [ "$runtime" != crun ]; then # systemd would open all again
      refused injection-impossible privileged "" "exec /bin/probe"
    else
      starts privileged "" "exec /bin/probe"
      what="closed closed closed"
      [ "$layout" = v2 ] || what="unmade unmade unmade"
      sees privileged "$what" "privileged and stripped"
      inside systemctl daemon-reload
      sees privileged "$what" "privileged and stripped, daemon-reload"
      ends privileged
    fi
    options=(--cap-add MKNOD)
    sed -i '/^.policy.$/,$d' "$root/etc/gpuledger/config.toml"
  fi
  if [ "$manager" = systemd ]; then
    step "systemd does not answer"
    sed -i 's|^exec |mv /run/systemd/private /run/systemd/private.away; exec |' "$root/opt/runtimes/$runtime"
    refused injection-impossible deaf "$one" "exec /bin/probe"
    sed -i 's|^mv .*; exec |exec |' "$root/opt/runtimes/$runtime"
    inside mv /run/systemd/private.away /run/systemd/private 2>/dev/null || true
  fi
  starts one "$one" "exec /bin/probe"
  everybody "it answers again"
  ends one
  release "$one"
  ends stranger

  rows+="| ${names[$engine]}, ${names[$runtime]} | $manager, $layout | yes | yes | yes | refused |"$'\n'
}
rows= # of the table of docs/hook.md that stories have shown

# same_table: docs/hook.md has these rows, and no other of these engines on this layout.
same_table() {
  local name has=
  for name in "${engines[@]}"; do
    has+=$(grep "^| ${names[$name]}, .* | [a-z]*, $layout |" docs/hook.md)$'\n'
  done
  diff <(sort <<<"$rows") <(sort <<<"$has") || fail "docs/hook.md does not have what was seen"
}

node
step "boot"
boot
inside mount --make-rshared / # as systemd does where it is not in a container
inside gpuledger inventory simulate --gpus 2 --memory 16GiB --out /etc/gpuledger/node.json
inside gpuledger inventory refresh >/dev/null
mkdir -p "$root/srv/book"
echo '{}' >"$root/srv/nothing.json"
jq -r '.gpus[] | "\(.uuid) 16384 Stand-in"' "$root/var/lib/gpuledger/inventory.json" >"$root/srv/book/devices"
echo "context 1" >>"$root/srv/book/devices"
chmod -R 777 "$root/srv/book"
inside systemctl start gpuledgerd || { inside journalctl --no-pager -n 30 >&2; fail "gpuledgerd does not start"; }
inside tar -C /srv/image -cf /packages/image.tar .
inside podman import --quiet --change CMD=/bin/sh /packages/image.tar localhost/image:1 >/dev/null

answers() { inside crictl version >/dev/null 2>&1; }
for engine in "${engines[@]}"; do
  rm -f "$root$hooks"/*
  case $engine in
    podman) cp configs/hooks.d/podman/*-{create,poststop}.json "$root$hooks/" ;; # precreate is no hook alone: it edits the spec
    crio) cp configs/hooks.d/cri-o/*.json "$root$hooks/" ;;
  esac
  for manager in systemd cgroupfs; do
    if [ "$engine" = crio ]; then
      sed -i "s/^cgroup_manager = .*/cgroup_manager = \"$manager\"/; s/^conmon_cgroup = .*/conmon_cgroup = \"$([ $manager = systemd ] && echo system.slice || echo pod)\"/" "$root/etc/crio/crio.conf"
      inside systemctl restart crio || { inside journalctl --no-pager -u crio -n 30 >&2; fail "CRI-O does not start"; }
      eventually "CRI-O answers" answers
    fi
    for runtime in runc crun newest; do
      [ "$runtime $manager" = "newest cgroupfs" ] || story
    done
  done
done
same_table
step "all of it"
