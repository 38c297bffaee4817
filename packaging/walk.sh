#!/bin/bash
# packaging/walk.sh ROOT DEB IMAGE WORK CGROUP: does what a new user does. It boots the Debian in ROOT and types what docs/install.md shows
# for containerd, CRI-O and Podman, line by line and unchanged, and compares the output with the page. In between it boots again and checks
# the order of the units. In the end the image sets the node up and removes everything again, as the DaemonSet does.
# No page shows what a node has before gpuledger: engines that run, an image, and a driver. The machine has no GPU, so the script installs
# the stand-in driver of the tests, with a unit that does what NVIDIA's persistence daemon does.
set -euo pipefail
root=$1 deb=$2 image=$3 work=$4 group=$5
cd "$(dirname "$0")/.."

. packaging/booted.sh
. packaging/standin.sh

# --- the node

# archive NAME ENTRYPOINT: makes an image of busybox, as `docker save` writes one.
archive() {
  local dir=$work/image layer config
  rm -rf "$dir"
  mkdir -p "$dir"/{root/{bin,dev,etc,proc,sys,tmp},image}
  cp "$root/bin/busybox" "$dir/root/bin/"
  local applet
  for applet in sh ls cat echo sleep; do ln -s busybox "$dir/root/bin/$applet"; done
  tar -C "$dir/root" --owner=0 --group=0 -cf "$dir/image/layer.tar" .
  layer=$(sha256sum "$dir/image/layer.tar" | cut -d ' ' -f 1)
  jq -n --arg arch "$(go env GOARCH)" --arg layer "sha256:$layer" --argjson entry "$2" \
    '{architecture: $arch, os: "linux", config: {Env: ["PATH=/bin"], Entrypoint: $entry, Cmd: (if $entry then null else ["sh"] end)}, rootfs: {type: "layers", diff_ids: [$layer]}}' >"$dir/config.json"
  config=$(sha256sum "$dir/config.json" | cut -d ' ' -f 1).json
  mv "$dir/config.json" "$dir/image/$config"
  jq -n --arg config "$config" --arg name "$1" '[{Config: $config, RepoTags: [$name], Layers: ["layer.tar"]}]' >"$dir/image/manifest.json"
  tar -C "$dir/image" -cf "$root/packages/$3" manifest.json "$config" layer.tar
}

readonly busybox=docker.io/library/busybox:latest pause=registry.k8s.io/pause:3.6

# engines: installs the engines. Debian has no package of CRI-O, so this one is what the end-to-end
# tests build, with a unit of its own. A root without CAP_SYS_RESOURCE can set no negative OOM score
# and raise no limit, so each engine is configured to do neither.
engines() {
  local weak=
  [ $((0x$(awk '$1 == "CapEff:" { print $2 }' /proc/self/status) >> 24 & 1)) = 1 ] || weak=yes
  if [ -n "$weak" ]; then
    sed -i '/\[plugins."io.containerd.grpc.v1.cri"\]$/a\    restrict_oom_score_adj = true' "$root/etc/containerd/config.toml"
    grep -q restrict_oom_score_adj "$root/etc/containerd/config.toml" || fail "Debian's containerd has another configuration than it had"
  fi
  install -m 755 .cache/engines/crio/crio .cache/engines/crio/pinns .cache/engines/crictl/crictl "$root/usr/bin/"
  mkdir -p "$root"/etc/{crio/crio.conf.d,containers}
  cat >"$root/etc/crio/crio.conf" <<CRIO
[crio]
storage_driver = "overlay"
[crio.runtime]
default_runtime = "runc"
pinns_path = "/usr/bin/pinns"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/sbin/runc"
runtime_type = "oci"
runtime_root = "/run/runc"
monitor_path = "/usr/bin/conmon"
monitor_env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
[crio.image]
pause_image = "$pause"
signature_policy = "/etc/containers/policy.json"
CRIO
  cat >"$root/etc/systemd/system/crio.service" <<'UNIT'
[Unit]
Description=CRI-O
After=network.target
[Service]
Type=notify
ExecStart=/usr/bin/crio
KillMode=process
Restart=on-failure
[Install]
WantedBy=multi-user.target
UNIT
  echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$root/etc/containers/policy.json"
  echo 'unqualified-search-registries = ["docker.io"]' >"$root/etc/containers/registries.conf"
  printf '[storage]\ndriver = "overlay"\nrunroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n' >"$root/etc/containers/storage.conf"
  # A node without a network: containers have the node's own.
  { printf '[containers]\nnetns = "host"\n'; [ -z "$weak" ] || printf 'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'; } >"$root/etc/containers/containers.conf"
  archive "$busybox" null busybox.tar
  archive "$pause" '["/bin/sh", "-c", "trap exit TERM INT; while :; do sleep 1000 & wait; done"]' pause.tar
}

cri() { printf 'runtime-endpoint: unix://%s\nimage-endpoint: unix://%s\ntimeout: 60\n' "$1" "$1" >"$root/etc/crictl.yaml"; }
cri_answers() { inside crictl version >/dev/null 2>&1; }
cri_knows() { inside crictl inspecti "$1" >/dev/null 2>&1; }

# --- what is walked

# walk SECTION...: types the commands of these sections of docs/install.md for this architecture.
walk() {
  local IFS=,
  sed "s/_amd64/_$(dpkg --print-architecture)/" docs/install.md >"$work/install.md"
  "$work/typist" "$work/install.md" "$*" -- nsenter --target "$init" --all --root --wd /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
    sh -c 'cd /packages && exec bash' || fail "docs/install.md, $*"
}

property() { inside systemctl show --property "$2" --value "$1"; }
taken() { inside stat -c %Y.%i /var/lib/gpuledger/inventory.json; }
differs() { [ "$(taken)" != "$before" ]; }

# gone: fails if a purge has left a file.
gone() {
  ! inside sh -c 'ls -d /etc/gpuledger /var/lib/gpuledger /var/log/gpuledger /run/gpuledger /usr/lib/gpuledger /run/cdi/gpuledger* /etc/cdi/gpuledger* /usr/bin/gpuledger* 2>/dev/null || true' | grep . || fail "this stays behind"
}

mkdir -p "$root/packages"
cp "$deb" "$root/packages/"
go build -p 2 -o "$work/typist" ./test/transcript/walk
stand_in_driver
engines
boot
[ "$(property nvidia-persistenced.service Result)" = success ] || fail "the stand-in driver does not start"
for archive in busybox pause; do
  inside ctr -n k8s.io image import "/packages/$archive.tar" >/dev/null || fail "ctr image import"
  inside podman load --quiet --input "/packages/$archive.tar" >/dev/null || fail "podman load"
done

echo "== containerd"
cri /run/containerd/containerd.sock
eventually "containerd answers" cri_answers
eventually "containerd knows its image" cri_knows "$busybox"
walk containerd "A pod's share"

echo "== the next boot: the driver, the inventory, then the engines"
inside systemctl enable crio >/dev/null 2>&1
shut
boot
[ "$(property gpuledger-inventory.service Result)" = success ] || fail "the inventory was not taken at boot"
moment() { property "$1" "$2TimestampMonotonic"; }
driver=$(moment nvidia-persistenced.service ExecMainExit) began=$(moment gpuledger-inventory.service ExecMainStart) ended=$(moment gpuledger-inventory.service ExecMainExit)
echo "driver until $driver us, inventory from $began until $ended us"
[ "$driver" -gt 0 ] && [ "$driver" -le "$began" ] && [ "$began" -lt "$ended" ] || fail "the inventory does not wait for the driver"
for engine in containerd crio; do
  began=$(moment $engine.service ExecMainStart)
  echo "$engine from $began us"
  [ "$ended" -le "$began" ] || fail "$engine does not wait for the inventory"
done
[ "$(inside cat /proc/sys/kernel/random/boot_id)" = "$(inside jq -r .boot_id /var/lib/gpuledger/inventory.json)" ] || fail "the inventory is of another boot"
inside gpuledger gpus >"$work/said" 2>&1 && ! grep warning "$work/said" || { cat "$work/said" >&2; fail "the inventory of this boot does not hold"; }

echo "== the configuration changes: the path unit has the inventory taken again"
before=$(taken)
inside sh -c 'sed "s/^mode = \"enforce\"/mode = \"report\"/" /etc/gpuledger/config.toml >/etc/gpuledger/new && mv /etc/gpuledger/new /etc/gpuledger/config.toml'
eventually "the inventory is taken again" differs
before=$(taken)
inside sh -c 'echo "# a cluster has nothing to say" >/etc/gpuledger/cluster.toml'
eventually "the inventory is taken again for what a cluster writes" differs
before=$(taken)
inside rm /etc/gpuledger/cluster.toml
eventually "the inventory is taken again without it" differs

echo "== gpuledgerd runs under its unit's restrictions"
inside systemctl enable --now gpuledgerd >/dev/null 2>&1 || { inside journalctl --no-pager -n 50 -u gpuledgerd >&2; fail "gpuledgerd does not start"; }
[ "$(property gpuledgerd.service ActiveState)" = active ] || fail "gpuledgerd does not run"
inside busybox wget -q -O- http://127.0.0.1:9836/metrics >"$work/said" || fail "gpuledgerd does not answer"
grep -q '^gpuledger_' "$work/said" || fail "gpuledgerd has no metrics"
inside gpuledger doctor | grep '^ok       daemon' || fail "the doctor does not see gpuledgerd"

echo "== and back"
# CRI-O offers NRI, so gpuledgerd checks its containers; the page says what to type first then.
inside systemctl disable --now gpuledgerd >/dev/null 2>&1
walk Remove
gone

echo "== CRI-O"
cri /run/crio/crio.sock
eventually "CRI-O answers" cri_answers
walk CRI-O "A pod's share"
inside gpuledger configure crio --undo --restart >/dev/null || fail "configure crio --undo"
inside apt-get purge -y gpuledger >"$work/said" 2>&1 || { cat "$work/said" >&2; fail "apt purge"; }
gone
inside systemctl disable --now crio >/dev/null 2>&1

echo "== Podman"
walk Podman "A container's share"
inside gpuledger configure podman --undo >/dev/null || fail "configure podman --undo"
inside apt-get purge -y gpuledger >"$work/said" 2>&1 || { cat "$work/said" >&2; fail "apt purge"; }
gone

echo "== the image: containerd reads it, and its program sets the node up and takes it back"
cp "$image" "$root/packages/setup.tar"
inside ctr image import /packages/setup.tar >/dev/null || fail "ctr image import"
cp "${image/gpuledger-setup_/gpuledger-kube_}" "$root/packages/kube.tar"
inside ctr image import /packages/kube.tar >/dev/null || fail "ctr image import of the cluster's agents"
mkdir -p "$root/srv/image"
tar -xOf "$image" manifest.json | jq -r '.[0].Layers[]' | while read -r layer; do
  case $layer in *.gz) tar -xOf "$image" "$layer" | gunzip ;; *) tar -xOf "$image" "$layer" ;; esac | tar -xC "$root/srv/image"
done
# The same root as in the DaemonSet's pod: the image's files, the node's below /host, and the node's
# processes.
# shellcheck disable=SC2016 # the inner shell's
pod() { inside unshare --mount sh -c 'mount --rbind / /srv/image/host && exec chroot /srv/image /gpuledger-setup "$@"' - "$@" >"$work/said" 2>&1 || { cat "$work/said" >&2; fail "gpuledger-setup $*"; }; }
pod install --engine=containerd --as-default --mode=report
inside grep -rq gpuledger-runtime /etc/containerd || fail "containerd is not configured"
[ "$(inside systemctl is-active containerd gpuledger-inventory.path gpuledger-cluster.path | sort -u)" = active ] || fail "containerd, or a path unit, does not run"
[ "$(inside gpuledger --version)" = "gpuledger version $(dpkg-deb -f "$deb" Version | sed 's/-1$//')" ] || fail "another version is on the node"
pod remove --engine=containerd
! inside sh -c 'ls -d /usr/bin/gpuledger* /usr/lib/gpuledger/shim* /usr/lib/systemd/system/gpuledger* 2>/dev/null || true' | grep -v '^/usr/bin/gpuledger-runtime' || fail "this stays behind"
inside test -x /usr/bin/gpuledger-runtime || fail "containers that were started through the wrapper cannot be ended"
inside rm /run/gpuledger-setup.removed # as the next boot does
pod remove --engine=containerd
! inside sh -c 'ls -d /usr/bin/gpuledger* /usr/lib/gpuledger 2>/dev/null || true' | grep . || fail "this stays behind after a boot"
! inside grep -rq gpuledger-runtime /etc/containerd || fail "containerd is still configured"
shut
