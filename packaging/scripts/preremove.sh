#!/bin/sh
# dpkg calls it with "remove", "upgrade VERSION" or "deconfigure ...", rpm with the number of versions that stay.
set -e
case ${1:-} in
  remove | 0) ;;
  *) exit 0 ;;
esac

# An engine whose configuration names a missing program starts no container. The records of
# `configure` show which engine does. If they are lost, or lines were written by hand, the engine's
# files show it.
key="s/^[[:space:]]*[\"']\{0,1\}state_dir[\"']\{0,1\}[[:space:]]*=[[:space:]]*"
state=$(sed -n -e "$key\"\([^\"]*\)\".*/\1/p" -e "$key'\([^']*\)'.*/\1/p" /etc/gpuledger/config.toml 2>/dev/null | head -n 1)
for record in "${state:-/var/lib/gpuledger}"/configure/*/record.json; do
  [ -e "$record" ] || continue
  engine=$(basename "$(dirname "$record")")
  echo "gpuledger: cannot be removed: what \`gpuledger configure $engine\` changed is not undone, or not all of it" >&2
  echo "hint: gpuledger configure $engine --undo --restart, which says what to stop before; and let containers end that were started through it" >&2
  configured=yes
done
[ -z "${configured:-}" ] || exit 1
for file in /etc/containerd/*.toml /etc/containerd/*/*.toml /etc/crio/crio.conf /etc/crio/crio.conf.d/* /etc/docker/daemon.json \
  /etc/containers/containers.conf /etc/containers/containers.conf.d/*.conf /usr/share/containers/containers.conf \
  /etc/containers/oci/hooks.d/*.json /usr/share/containers/oci/hooks.d/*.json \
  /var/lib/rancher/*/agent/etc/containerd/*.toml /var/lib/rancher/*/agent/etc/containerd/*.tmpl /var/lib/rancher/*/agent/etc/containerd/*.toml.d/*.toml \
  /etc/k0s/containerd.toml /etc/k0s/containerd.d/*.toml /run/k0s/containerd-cri.toml /var/snap/microk8s/current/args/containerd*.toml \
  /etc/nvidia-container-runtime/config.toml /usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml; do
  grep -qsE '^[^#]*(gpuledger-(runtime|hook)|["'\''.]gpuledger["'\'']|\.gpuledger[].])' "$file" || continue
  echo "gpuledger: cannot be removed: $file names its programs" >&2
  configured=yes
done
if [ -n "${configured:-}" ]; then
  echo "hint: gpuledger configure ENGINE --undo --restart; what that does not know of, take out by hand" >&2
  exit 1
fi

# An engine kills and deletes a container through the program that started it: containerd's shim
# keeps the runtime's name in the bundle, conmon in its arguments.
through=0
tasks='io.containerd.runtime.v2.task/*/*/runtime' # below the directory for state of each containerd: its own, Docker's, those of distributions
for file in /run/containerd/$tasks /run/docker/containerd/daemon/$tasks /run/k3s/containerd/$tasks /run/k0s/containerd/$tasks \
  /var/snap/microk8s/common/run/containerd/$tasks; do
  ! grep -qs '/gpuledger-runtime' "$file" || through=$((through + 1))
done
for process in /proc/[0-9]*; do
  # A process in a container can have any name. Podman's monitors of users are on the node, too.
  [ "$(readlink "$process/ns/pid" 2>/dev/null)" = "$(readlink /proc/self/ns/pid)" ] || continue
  case $(cat "$process/comm" 2>/dev/null) in
    conmon* | crio-conmon*) ! grep -qsa '/gpuledger-runtime' "$process/cmdline" || through=$((through + 1)) ;;
  esac
done
if [ "$through" -gt 0 ] && [ ! -e /run/gpuledger/remove-anyway ]; then
  echo "gpuledger: cannot be removed: $through containers run that were started through it, and could not be stopped without it" >&2
  echo "hint: let them end; or, where they may stay until the next boot, touch /run/gpuledger/remove-anyway" >&2
  exit 1
fi
rm -f /run/gpuledger/remove-anyway

if [ -d /run/systemd/system ]; then
  systemctl --quiet disable --now gpuledgerd.service || true
  systemctl stop gpuledger-inventory.path || true
  # gpuledgerd leaves its MPS daemons running. They stay if a container may use one: the CUDA contexts of
  # its programs would end with the daemon. A container's grant can be one that cannot be read.
  if gpuledger check >/dev/null 2>&1 && grants=$(gpuledger grants) && ! printf '%s\n' "$grants" | grep -q '^g-[a-z]* *\(bound\|draining\|unknown\) *mps '; then
    systemctl stop 'gpuledger-mps@*.service' || true
  else
    echo "gpuledger: MPS daemons stay until the next boot: containers may use them" >&2
  fi
fi
gpuledgerd close-nodes || true # the nodes of GPUs that users could open
