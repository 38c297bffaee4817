#!/bin/bash
# packaging/walk.sh ROOT DEB IMAGE WORK CGROUP: walks the way of a new user. It boots the Debian in ROOT, and types what docs/install.md says for
# containerd and Podman, line by line and unchanged; then it boots again and looks at the order of the units, and goes back; at last the image sets the node up and takes it back, as the DaemonSet does.
# What no page says: the machine has no GPU, so the inventory is told of two simulated ones.
set -euo pipefail
root=$1 deb=$2 image=$3 work=$4 group=$5
cd "$(dirname "$0")/.."

fail() { echo "FAIL: $*" >&2; exit 1; }
inside() { nsenter --target "$init" --all --root --wd /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
trap '[ -z "${booted:-}" ] || shut' EXIT

# eventually WHAT COMMAND...: as long as a slow machine takes.
eventually() {
  local what=$1 i
  shift
  for ((i = 0; i < 1200; i++)); do
    ! "$@" || return 0
    sleep 0.1
  done
  inside journalctl --no-pager -n 50 >&2 || true
  fail "$what: still not"
}

is_up() { [[ $(inside systemctl is-system-running 2>/dev/null) =~ ^(running|degraded)$ ]]; }

boot() {
  rm -f "$work/init"
  packaging/boot.sh "$root" "$group" "$work/init" >"$work/boot.log" 2>&1 &
  booted=$!
  eventually "the system has a process 1" test -s "$work/init"
  init=$(cat "$work/init")
  eventually "the system is up" is_up
}

shut() {
  kill -KILL "$init" 2>/dev/null || true
  wait "$booted" || true
  booted=
}

# commands ENGINE: what the page says to type.
commands() { awk -v heading="## $1" '$0 == heading { here = 1 } here && /^```$/ { if (block++) exit; next } block' docs/install.md; }

# type LINE: in a shell, where the package lies.
type_line() {
  echo "# $1"
  inside sh -c "cd /packages && $1" </dev/null >"$work/said" 2>&1 || { cat "$work/said" >&2; fail "$1"; }
}

# walk ENGINE: everything but the doctor must succeed, and he must have no complaint about what was installed.
walk() {
  local line lines=0
  while read -r line; do
    [ -n "$line" ] || continue
    lines=$((lines + 1))
    case $line in
      'gpuledger inventory refresh'*)
        inside gpuledger inventory simulate --gpus 2 --memory 16GiB --out /etc/gpuledger/node.json >/dev/null
        inside sed -i 's|^# source = .*|source = "simulated"|; s|^# file   = .*|file   = "/etc/gpuledger/node.json"|' /etc/gpuledger/config.toml
        type_line "$line"
        ;;
      'gpuledger doctor'*)
        echo "# $line"
        inside sh -c "$line" >"$work/said" 2>&1 || true
        ! grep -E '^problem +(configuration|policy|directories|programs|runtimes|inventory|ledger|audit|engines|cdi|toolkit)' "$work/said" || fail "the doctor finds a problem"
        grep -qE "^(ok|warning) +engines" "$work/said" || { cat "$work/said" >&2; fail "the doctor does not see the engine"; }
        ;;
      *) type_line "$line" ;;
    esac
  done < <(commands "$1")
  [ "$lines" -ge 4 ] || fail "docs/install.md has no commands for $1"
}

monotonic() { inside systemctl show --property "$2" --value "$1"; }
since_boot() { monotonic "$1" ExecMainStartTimestampMonotonic; }
taken() { inside stat -c %Y.%i /var/lib/gpuledger/inventory.json; }
differs() { [ "$(taken)" != "$before" ]; }

mkdir -p "$root/packages"
cp "$deb" "$root/packages/"
boot
echo "== containerd"
walk containerd
[ "$(inside systemctl is-active containerd)" = active ] || fail "containerd does not run"
inside grep -rq gpuledger-runtime /etc/containerd || fail "containerd is not configured"
inside grep -q '^mode = "report"' /etc/gpuledger/config.toml || fail "the first policy does not report"
echo "== podman"
walk Podman
inside podman info --format '{{.Host.OCIRuntime.Path}}' | grep -q gpuledger-runtime || fail "Podman's default runtime is another"

echo "== the next boot: the inventory is taken before the engine starts"
shut
boot
[ "$(monotonic gpuledger-inventory.service Result)" = success ] || fail "the inventory was not taken at boot"
ended=$(monotonic gpuledger-inventory.service ExecMainExitTimestampMonotonic)
[ "$ended" -gt 0 ] && [ "$ended" -le "$(since_boot containerd.service)" ] || fail "the inventory ended at $ended, containerd began at $(since_boot containerd.service)"
inside gpuledger gpus >/dev/null || fail "the inventory of this boot is not there"

echo "== the configuration changes: the path unit has it taken again"
before=$(taken)
inside sh -c 'sed "s/^mode = \"report\"/mode = \"enforce\"/" /etc/gpuledger/config.toml >/etc/gpuledger/new && mv /etc/gpuledger/new /etc/gpuledger/config.toml'
eventually "the inventory is taken again" differs

echo "== gpuledgerd runs under its unit's restrictions"
inside systemctl enable --now gpuledgerd >/dev/null 2>&1 || fail "gpuledgerd does not start"
inside sh -c 'exec 3<>/dev/tcp/127.0.0.1/9836' 2>/dev/null || inside busybox wget -q -O- http://127.0.0.1:9836/metrics >"$work/said" || true
[ "$(inside systemctl is-active gpuledgerd)" = active ] || fail "gpuledgerd does not run"

echo "== and back"
type_line 'gpuledger configure podman --undo'
type_line 'gpuledger configure containerd --undo --restart'
inside apt-get purge -y gpuledger >"$work/said" 2>&1 || { cat "$work/said" >&2; fail "apt purge"; }
rm "$root/etc/gpuledger/node.json"
rmdir "$root/etc/gpuledger"
! inside sh -c 'ls -d /etc/gpuledger /var/lib/gpuledger /var/log/gpuledger /run/gpuledger /usr/lib/gpuledger 2>/dev/null || true' | grep . || fail "this stays behind"

echo "== the image: containerd reads it, and its program sets the node up and takes it back"
cp "$image" "$root/packages/setup.tar"
type_line 'ctr image import setup.tar'
mkdir -p "$root/srv/image"
tar -xOf "$image" manifest.json | jq -r '.[0].Layers[]' | while read -r layer; do
  case $layer in *.gz) tar -xOf "$image" "$layer" | gunzip ;; *) tar -xOf "$image" "$layer" ;; esac | tar -xC "$root/srv/image"
done
# What the DaemonSet's pod is: the image's files, the node's below /host, and the node's processes.
pod() { inside unshare --mount sh -c 'mount --rbind / /srv/image/host && exec chroot /srv/image /gpuledger-setup "$@"' - "$@" >"$work/said" 2>&1 || { cat "$work/said" >&2; fail "gpuledger-setup $*"; }; }
pod install --engine=containerd --as-default --mode=report
inside grep -rq gpuledger-runtime /etc/containerd || fail "containerd is not configured"
[ "$(inside systemctl is-active containerd gpuledger-inventory.path | sort -u)" = active ] || fail "containerd, or the path unit, does not run"
[ "$(inside gpuledger --version)" = "gpuledger version $(dpkg-deb -f "$deb" Version | sed 's/-1$//')" ] || fail "another version is on the node"
pod remove --engine=containerd
! inside sh -c 'ls -d /usr/bin/gpuledger* /usr/lib/gpuledger/shim* /usr/lib/systemd/system/gpuledger* 2>/dev/null || true' | grep -v '^/usr/bin/gpuledger-runtime' || fail "this stays behind"
inside test -x /usr/bin/gpuledger-runtime || fail "containers that were started through the wrapper cannot be ended"
inside rm /run/gpuledger-setup.removed # as the next boot does
pod remove --engine=containerd
! inside sh -c 'ls -d /usr/bin/gpuledger* /usr/lib/gpuledger 2>/dev/null || true' | grep . || fail "this stays behind after a boot"
! inside grep -rq gpuledger-runtime /etc/containerd || fail "containerd is still configured"
shut
