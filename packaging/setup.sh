#!/bin/bash
# packaging/setup.sh [ENGINE...]: what gpuledger-setup does on a node that works. ENGINE is containerd-1.6, containerd-1.7, containerd-2 or
# crio (default: all). It boots a Debian 12 with its own systemd and the engine, and runs the pods of packaging/kubernetes through the
# engine's CRI as a kubelet would: the set-up ten times, then agents, then the removal. Containers that ran before and that started
# meanwhile have to live on. The image is made of bin/. However this ends, every container and service that it has started ends with it.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin LC_ALL=C

engines=(containerd-1.6 containerd-1.7 containerd-2 crio)
[ $# = 0 ] || engines=("$@")
if [ -z "${GPULEDGER_TEST_PRIVATE:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "packaging/setup.sh: it takes root" >&2; exit 1; }
  test/engines/build.sh crictl $(printf '%s\n' "${engines[@]}" | grep -vx containerd-1.6 | sed 's/^containerd-2$/containerd-2 runc/')
  GPULEDGER_TEST_PRIVATE=1 exec unshare --mount --pid --fork --kill-child --mount-proc --propagation private "packaging/setup.sh" "${engines[@]}"
fi

work=$(mktemp -d)
root=$work/root
group=gpuledger-setup-${work##*.}
. packaging/booted.sh
clean() {
  [ -z "${booted:-}" ] || shut
  ! mountpoint -q "$root" || umount -R "$root" 2>/dev/null || umount -R -l "$root"
  rm -rf --one-file-system "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM HUP
step() { printf '== %3d s: %s: %s\n' "$SECONDS" "$engine" "$*"; }

# image NAME TREE CONFIG: an image as `docker save` writes one, in the node's /packages.
image() {
  local dir=$work/image layer config
  rm -rf "$dir"
  mkdir -p "$dir"
  tar -C "$2" --owner=0 --group=0 -cf "$dir/layer.tar" .
  layer=$(sha256sum "$dir/layer.tar" | cut -d ' ' -f 1)
  jq -n --arg arch "$(go env GOARCH)" --arg layer "sha256:$layer" --argjson config "$3" '{architecture: $arch, os: "linux", config: $config, rootfs: {type: "layers", diff_ids: [$layer]}}' >"$work/config.json"
  config=$(sha256sum "$work/config.json" | cut -d ' ' -f 1).json
  mv "$work/config.json" "$dir/$config"
  jq -n --arg config "$config" --arg name "localhost/$1:1" '[{Config: $config, RepoTags: [$name], Layers: ["layer.tar"]}]' >"$dir/manifest.json"
  tar -C "$dir" -cf "$root/packages/$1.tar" manifest.json "$config" layer.tar
}

# images: a busybox, and the set-up's own with the tree that packages have.
images() {
  local tree=$work/busybox applet name
  rm -rf "$tree" "$work/setup"
  mkdir -p "$tree"/{bin,dev,etc,proc,sys,tmp} "$work/setup"/{host,node/usr/bin,node/usr/lib/systemd/system,node/usr/lib/udev/rules.d,node/etc/gpuledger}
  cp "$root/bin/busybox" "$tree/bin/"
  for applet in sh sleep; do ln -s busybox "$tree/bin/$applet"; done
  image busybox "$tree" '{"Cmd": ["/bin/sleep", "36000"]}'
  tree=$work/setup
  CGO_ENABLED=0 go build -p 2 -trimpath -o "$tree/gpuledger-setup" ./cmd/gpuledger-setup
  cp bin/gpuledger bin/gpuledger-runtime bin/gpuledger-hook bin/gpuledgerd "$tree/node/usr/bin/"
  for name in containerd crio docker podman; do ln -s gpuledger-runtime "$tree/node/usr/bin/gpuledger-runtime.$name"; done
  cp packaging/systemd/* "$tree/node/usr/lib/systemd/system/"
  cp packaging/90-gpuledger.rules "$tree/node/usr/lib/udev/rules.d/"
  sed -Ef packaging/config.sed configs/config.toml >"$tree/node/etc/gpuledger/config.toml"
  image setup "$tree" '{"Entrypoint": ["/gpuledger-setup"]}'
}

# node: the engine on it, as an administrator has it. A root without CAP_SYS_RESOURCE can set no negative OOM score.
node() {
  local weak=false
  [ $((0x$(awk '$1 == "CapEff:" { print $2 }' /proc/self/status) >> 24 & 1)) = 1 ] || weak=true
  install -m 755 .cache/engines/crictl/crictl "$root/usr/bin/"
  case $engine in
    containerd-2)
      install -m 755 .cache/engines/containerd-2/* .cache/engines/runc/runc "$root/usr/bin/"
      rm -f "$root/usr/sbin/runc"
      cat >"$root/etc/containerd/config.toml" <<CONFIG
version = 3 # the administrator's
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/busybox:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = $weak
CONFIG
      ;;
    containerd-*)
      [ "$engine" = containerd-1.6 ] || install -m 755 .cache/engines/$engine/* "$root/usr/bin/"
      cat >"$root/etc/containerd/config.toml" <<CONFIG
version = 2 # the administrator's
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/busybox:1"
  restrict_oom_score_adj = $weak
CONFIG
      ;;
    crio)
      install -m 755 .cache/engines/crio/crio .cache/engines/crio/pinns "$root/usr/bin/"
      mkdir -p "$root"/etc/{crio/crio.conf.d,containers}
      cat >"$root/etc/crio/crio.conf" <<CONFIG
[crio] # the administrator's
storage_driver = "overlay"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "/usr/bin/pinns"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/sbin/runc"
runtime_type = "oci"
runtime_root = "/run/runc"
monitor_path = "/usr/bin/conmon"
monitor_env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
[crio.image]
pause_image = "localhost/busybox:1"
pause_command = "/bin/sleep 36000"
signature_policy = "/etc/containers/policy.json"
CONFIG
      printf '[Unit]\nDescription=CRI-O\n[Service]\nType=notify\nExecStart=/usr/bin/crio\nKillMode=process\n[Install]\nWantedBy=multi-user.target\n' >"$root/etc/systemd/system/crio.service"
      echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$root/etc/containers/policy.json"
      printf '[storage]\ndriver = "overlay"\nrunroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n' >"$root/etc/containers/storage.conf"
      ! $weak || weaken # CRI-O gives a privileged container each capability that there is
      ! $weak || printf '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n' >"$root/etc/containers/containers.conf"
      mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
      ln -s ../crio.service "$root/etc/systemd/system/multi-user.target.wants/crio.service"
      ;;
  esac
  printf 'runtime-endpoint: unix://%s\nimage-endpoint: unix://%s\ntimeout: 60\n' "$socket" "$socket" >"$root/etc/crictl.yaml"
}

# weaken: a runtime for a root without CAP_SYS_RESOURCE.
weaken() {
  mv "$root/usr/sbin/runc" "$root/usr/sbin/strong-runc"
  cat >"$root/usr/sbin/runc" <<'RUNC'
#!/bin/sh
bundle=. previous= create=
for word; do
  case $previous in --bundle | -b) bundle=$word ;; esac
  case $word in --bundle=*) bundle=${word#*=} ;; create | run) create=yes ;; esac
  previous=$word
done
if [ -n "$create" ]; then
  jq 'if (.process.oomScoreAdj // 0) < 0 then .process.oomScoreAdj = 0 else . end
    | (.process.capabilities // empty) |= map_values(map(select(. != "CAP_SYS_RESOURCE")))' "$bundle/config.json" >"$bundle/config.json.weak"
  mv "$bundle/config.json.weak" "$bundle/config.json"
fi
exec /usr/sbin/strong-runc "$@"
RUNC
  chmod 755 "$root/usr/sbin/runc"
}

answers() { inside crictl version >/dev/null 2>&1; }
knows() { inside crictl inspecti "localhost/$1:1" >/dev/null 2>&1; }
property() { inside systemctl show --property "$2" --value "$1"; }

# pod NAMESPACE NAME CONTAINER IMAGE OPTIONS ARG...: makes and starts it, and sets $pod and $id. OPTIONS is JSON that is laid over the container's.
pod() {
  local namespace=$1 name=$2 container=$3 image=$4 options=$5 labels dir=$root/srv pids
  shift 5
  pids=$(jq '.linux.security_context.namespace_options.pid // 1' <<<"$options")
  mkdir -p "$dir" "$root/var/log/pods/$name"
  attempt=$((attempt + 1))
  labels=$(jq -nc --arg n "$name" --arg ns "$namespace" --arg c "$container" --arg u "uid-$attempt" '{"io.kubernetes.pod.name": $n, "io.kubernetes.pod.namespace": $ns, "io.kubernetes.pod.uid": $u, "io.kubernetes.container.name": $c}')
  jq -n --arg n "$name" --arg ns "$namespace" --arg u "uid-$attempt" --argjson labels "$labels" --argjson privileged "$(jq '.linux.security_context.privileged // false' <<<"$options")" --argjson pids "$pids" \
    '{metadata: {name: $n, namespace: $ns, uid: $u, attempt: 0}, log_directory: ("/var/log/pods/" + $n), labels: $labels,
      linux: {cgroup_parent: "/pods", security_context: {namespace_options: {network: 2, pid: $pids}, privileged: $privileged}}}' >"$dir/pod.json"
  jq -n --arg c "$container" --arg image "localhost/$image:1" --argjson labels "$labels" --argjson options "$options" --arg attempt "$attempt" \
    '{metadata: {name: $c}, image: {image: $image}, log_path: ("log-" + $attempt), labels: $labels, args: $ARGS.positional,
      linux: {security_context: {namespace_options: {network: 2, pid: 1}}}} * $options | if .args == [] then del(.args) else . end' --args -- "$@" >"$dir/container.json"
  pod=$(inside crictl runp /srv/pod.json) || return 1
  id=$(inside crictl create "$pod" /srv/container.json /srv/pod.json 2>"$work/said") || { inside crictl rmp --force "$pod" >/dev/null; return 1; }
  inside crictl start "$id" >/dev/null 2>"$work/said" || { inside crictl rmp --force "$pod" >/dev/null; return 1; }
}
exited() { [ "$(inside crictl inspect --output go-template --template '{{.status.state}}' "$id" 2>/dev/null)" = CONTAINER_EXITED ]; }
pid_of() { inside crictl inspect --output go-template --template '{{.info.pid}}' "$1"; }

readonly nodes_files='{"linux": {"security_context": {"privileged": true, "namespace_options": {"pid": 2}}}, "mounts": [{"host_path": "/", "container_path": "/host", "propagation": 1}]}'
readonly ledgers='{"linux": {"security_context": {"namespace_options": {"pid": 2}}}, "mounts": [{"host_path": "/etc/gpuledger", "container_path": "/etc/gpuledger", "readonly": true}, {"host_path": "/run/gpuledger", "container_path": "/run/gpuledger"},
  {"host_path": "/var/lib/gpuledger", "container_path": "/var/lib/gpuledger"}, {"host_path": "/run/runc", "container_path": "/run/runc", "readonly": true}]}'

# set_up NAME CONTAINER ARG...: the pod of the DaemonSet to its end; its log is $work/log then.
set_up() {
  pod gpuledger-system "$1" "$2" setup "$nodes_files" "${@:3}" || { cat "$work/said" >&2; fail "the pod $1 does not start"; }
  eventually "the pod $1 ends" exited
  inside crictl logs "$id" >"$work/log" 2>&1
  status=$(inside crictl inspect --output go-template --template '{{.status.exitCode}}' "$id")
  inside crictl rmp --force "$pod" >/dev/null || fail "the pod $1 cannot be removed"
}
installs() {
  set_up gpuledger-setup-x7k2p install install "--engine=$name" --as-default
  [ "$status" = 0 ] || { cat "$work/log" >&2; fail "the set-up ends with status $status"; }
}

# engine_files: all that the engine reads, and what the set-up has no business with.
engine_files() { (cd "$root" && find etc -xdev -type f ! -path etc/gpuledger/config.toml ! -path etc/default/gpuledgerd ! -name resolv.conf -print0 | sort -z | xargs -0 sha256sum); }
same_files() { diff <(echo "$1") <(engine_files) || fail "$2"; }
lives() { local what; for what; do [ "$(pid_of "${what%:*}")" = "${what#*:}" ] && [ -d "/proc/$init/root/proc/${what#*:}" ] || fail "container ${what%:*} does not run any more"; done; }

one() {
  local name socket before after attempt=0 i was daemon calls
  case $engine in
    containerd-*) name=containerd socket=/run/containerd/containerd.sock ;;
    crio) name=crio socket=/run/crio/crio.sock ;;
    *) fail "there is no engine $engine" ;;
  esac
  step "a node that works"
  packaging/roots.sh debian "$root"
  mount --bind "$root" "$root" # a runtime's pivot_root asks for a mount point above it
  mkdir -p "$root/packages"
  images
  node
  boot
  inside mount --make-rshared /
  eventually "the engine answers" answers
  for archive in busybox setup; do
    case $name in
      containerd) inside ctr -n k8s.io image import "/packages/$archive.tar" >/dev/null || fail "ctr image import" ;;
      crio) inside podman load --quiet --input "/packages/$archive.tar" >/dev/null || fail "podman load" ;;
    esac
    eventually "the engine knows $archive" knows $archive
  done
  pod team tenant main busybox '{}' || { cat "$work/said" >&2; fail "a container does not start"; }
  calls=("$id:$(pid_of "$id")")
  before=$(engine_files)
  was=$(property "$name" MainPID)

  step "the set-up: files, default handler, one restart, gpuledgerd"
  installs
  [ "$(property "$name" MainPID)" != "$was" ] || fail "the engine was not restarted"
  grep -q '^# .*--restart$' "$work/log" || fail "the pod's log does not say that the engine was restarted"
  [ "$(property gpuledgerd.service ActiveState) $(property gpuledgerd.service UnitFileState)" = "active enabled" ] || fail "gpuledgerd does not run"
  lives "${calls[@]}"
  inside sed -i 's/^mode = "report"/mode = "enforce"/' /etc/gpuledger/config.toml
  grep -q '^mode = "enforce"' "$root/etc/gpuledger/config.toml" || { cat "$root/etc/gpuledger/config.toml" >&2; fail "the first policy is not report"; }
  after=$(engine_files; sha256sum "$root/etc/gpuledger/config.toml")
  pod team later main busybox '{}' || { cat "$work/said" >&2; fail "a container does not start behind gpuledger"; }
  calls+=("$id:$(pid_of "$id")")

  step "nine more times, under enforce: nothing changes, nothing restarts"
  was=$(property "$name" MainPID) daemon=$(property gpuledgerd.service MainPID)
  for ((i = 0; i < 9; i++)); do
    installs
    ! grep -q -e '--restart' -e ' restart ' "$work/log" || { cat "$work/log" >&2; fail "start $((i + 2)) restarts something"; }
  done
  [ "$(property "$name" MainPID) $(property gpuledgerd.service MainPID)" = "$was $daemon" ] || fail "something was restarted"
  diff <(echo "$after") <(engine_files; sha256sum "$root/etc/gpuledger/config.toml") || fail "something was written"
  lives "${calls[@]}"

  step "our own agents start under enforce, and nobody else with their mounts"
  inside mkdir -p /run/runc
  pod gpuledger-system gpuledger-dra-x7k2p agent busybox "$ledgers" || { cat "$work/said" >&2; fail "an agent does not start"; }
  inside crictl rmp --force "$pod" >/dev/null
  ! pod team gpuledger-dra-x7k2p agent busybox "$ledgers" || fail "a pod of another namespace has the ledger"
  grep -q 'gpuledger: refused (' "$work/said" || { cat "$work/said" >&2; fail "it does not start for another reason"; }

  step "a removal that cannot undo all keeps the programs"
  case $name in
    containerd) printf '# gpuledger-runtime\n[hand]\nBinaryName = "/usr/bin/gpuledger-runtime"\n' >"$root/etc/containerd/hand.toml" ;;
    crio) printf '{"version": "1.0.0", "hook": {"path": "/usr/bin/gpuledger-hook"}, "when": {"always": false}, "stages": ["createRuntime"]}\n' >"$root/etc/crio/crio.conf.d/hand" && mkdir -p "$root/etc/containers/oci/hooks.d" && mv "$root/etc/crio/crio.conf.d/hand" "$root/etc/containers/oci/hooks.d/hand.json" ;;
  esac
  set_up gpuledger-remove-x7k2p remove remove "--engine=$name"
  [ "$status" = 1 ] && grep -q 'they stay until nothing names them' "$work/log" || { cat "$work/log" >&2; fail "it ends with status $status"; }
  inside test -x /usr/bin/gpuledger -a -x /usr/bin/gpuledger-runtime -a -x /usr/bin/gpuledger-hook || fail "programs are gone that somebody names"
  rm "$root/etc/containerd/hand.toml" "$root/etc/containers/oci/hooks.d/hand.json" 2>/dev/null || true
  rmdir "$root/etc/containers/oci/hooks.d" "$root/etc/containers/oci" 2>/dev/null || true

  step "the removal: as it was to the byte; what runs lives on and can be ended"
  set_up gpuledger-remove-x7k2p remove remove "--engine=$name"
  [ "$status" = 0 ] || { cat "$work/log" >&2; fail "the removal ends with status $status"; }
  same_files "$before" "the node's configuration is not as it was"
  [ "$(property gpuledgerd.service ActiveState)" = inactive ] || fail "gpuledgerd still runs"
  ! inside sh -c 'ls -d /usr/bin/gpuledger* /usr/lib/gpuledger/shim* /usr/lib/systemd/system/gpuledger* /etc/default/gpuledgerd 2>/dev/null || true' | grep -v '^/usr/bin/gpuledger-runtime' || fail "this stays behind"
  lives "${calls[@]}"
  pod team after main busybox '{}' || { cat "$work/said" >&2; fail "a container does not start without gpuledger"; }
  for i in "${calls[@]%:*}" "$id"; do
    inside crictl stop --timeout 1 "$i" >/dev/null && inside crictl rm "$i" >/dev/null || fail "container $i cannot be ended"
  done
  shut
  umount -R "$root" 2>/dev/null || umount -R -l "$root"
  rm -rf --one-file-system "$root"
}

for engine in "${engines[@]}"; do
  one
done
echo "== $SECONDS s: all of it"
