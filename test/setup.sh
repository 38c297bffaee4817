#!/bin/bash
# setup.sh demo|test|test-runc|test-crun|test-podman|test-crio|test-nvidia|e2e|torture|bench|bench-peers|pictures|test-monitoring|packages|release|test-packages|test-systemd|test-quickstart|shim-arm64|check-go
# Installs what a make target lacks, on Debian 12 and as root. Where nothing is missing it changes nothing and asks no server.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

# What each target calls, as command:package; a path stands for a package that brings no command.
base="/etc/ssl/certs/ca-certificates.crt:ca-certificates gcc:gcc /usr/include/stdio.h:libc6-dev runc:runc busybox:busybox-static jq:jq unshare:util-linux git:git"
declare -A needs=(
  [demo]="$base"
  [bench]="$base"
  [test]="$base crun:crun containerd:containerd ctr:containerd ip:iproute2 strace:strace podman:podman conmon:conmon newuidmap:uidmap pkg-config:pkg-config /usr/include/seccomp.h:libseccomp-dev"
)
needs[torture]=${needs[test]}
needs[bench-peers]="$base crun:crun podman:podman conmon:conmon ip:iproute2 tar:tar"
needs[test-runc]="$base bats:bats gawk:gawk bc:bc ip:iproute2 newuidmap:uidmap getfattr:attr setfacl:acl script:bsdutils debootstrap:debootstrap pkg-config:pkg-config /usr/include/seccomp.h:libseccomp-dev"
needs[test-crun]="$base crun:crun python3:python3 ip:iproute2 script:bsdutils"
needs[test-podman]="$base crun:crun podman:podman conmon:conmon bats:bats gawk:gawk ip:iproute2 script:bsdutils /usr/lib/cni/bridge:containernetworking-plugins iptables:iptables"
needs[test-nvidia]="$base"
needs[test-crio]="$base crun:crun conmon:conmon bats:bats gawk:gawk ip:iproute2 script:bsdutils sysctl:procps /usr/lib/cni/bridge:containernetworking-plugins iptables:iptables socat:socat netstat:net-tools python3:python3 curl:curl pkg-config:pkg-config /usr/include/seccomp.h:libseccomp-dev"
needs[pictures]="${needs[test]} chromium:chromium /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf:fonts-dejavu-core"
needs[test-monitoring]="${needs[test]} promtool:prometheus"
needs[e2e]="${needs[test]} dockerd:docker.io podman-compose:podman-compose node:nodejs npm:npm"
needs[test-systemd]="$base debootstrap:debootstrap pkg-config:pkg-config /usr/include/seccomp.h:libseccomp-dev"
needs[test-quickstart]="${needs[test-systemd]} openssl:openssl /usr/lib/cni/bridge:containernetworking-plugins"
needs[shim-arm64]="gcc:gcc aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/include/stdio.h:libc6-dev-arm64-cross qemu-aarch64-static:qemu-user-static"
# gpuledger itself is linked with C, so the other architecture takes a compiler for it.
case $(uname -m) in
  aarch64) cross="x86_64-linux-gnu-gcc:gcc-x86-64-linux-gnu /usr/x86_64-linux-gnu/include/stdio.h:libc6-dev-amd64-cross" ;;
  *) cross="aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/include/stdio.h:libc6-dev-arm64-cross" ;;
esac
needs[packages]="/etc/ssl/certs/ca-certificates.crt:ca-certificates gcc:gcc /usr/include/stdio.h:libc6-dev git:git $cross"
needs[release]="${needs[packages]} dpkg-scanpackages:dpkg-dev createrepo_c:createrepo-c gpg:gpg"
needs[test-packages]="${needs[release]} debootstrap:debootstrap rpm:rpm rpmbuild:rpm dnf:dnf pkg-config:pkg-config /usr/include/seccomp.h:libseccomp-dev readelf:binutils unshare:util-linux jq:jq lintian:lintian rpmlint:rpmlint systemd-analyze:systemd"

# check_go: fails with what to do when go cannot build this module. Debian 12's own go (1.19) is too old.
check_go() {
  local wanted have
  wanted=$(awk '$1 == "go" { print $2 }' go.mod)
  command -v go >/dev/null || die "cannot find go; install Go $wanted or newer from https://go.dev/dl/ into /usr/local/go (Debian's is too old)"
  # From 1.21 on, go fetches the toolchain that go.mod asks for, unless GOTOOLCHAIN=local forbids it.
  have=$(go env GOVERSION 2>/dev/null) || die "this go ($(GOTOOLCHAIN=local go version 2>&1 | head -n 1)) cannot get the Go $wanted that go.mod asks for;" \
    "install it from https://go.dev/dl/ into /usr/local/go, or unset GOTOOLCHAIN where the network is reachable"
  have=${have#go}
  [ "$(printf '%s\n%s\n' "$wanted" "${have%%[-+ ]*}" | sort -V | head -n 1)" = "$wanted" ] ||
    die "go is $have, but go.mod asks for $wanted; install it from https://go.dev/dl/ into /usr/local/go"
}

# missing PAIR...: the packages whose command or file is not there.
missing() {
  local pair tool
  for pair; do
    tool=${pair%:*}
    case $tool in
      /*) [ -e "$tool" ] ;;
      *) command -v "$tool" >/dev/null ;;
    esac || echo "${pair##*:}"
  done | sort -u
}

# The shared busybox of Debian's package "busybox" cannot run in a rootfs that holds nothing else.
busybox_is_static() { ! ldd "$(command -v busybox)" >/dev/null 2>&1; }

# no_services: while apt runs, no package may start its service (containerd would, and would stay after us).
no_services() {
  local policy=/usr/sbin/policy-rc.d
  if [ -e "$policy" ]; then
    mv "$policy" "$policy.gpuledger-setup"
    trap 'mv -f /usr/sbin/policy-rc.d.gpuledger-setup /usr/sbin/policy-rc.d' EXIT
  else
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  trap 'exit 1' INT TERM HUP
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
}

install_packages() {
  say "installing $*"
  command -v apt-get >/dev/null || die "cannot install them: this is not Debian (no apt-get); install them by hand and run again"
  exec 8>/run/lock/gpuledger-setup
  flock 8 # of two that change policy-rc.d at once, one would keep the other's
  no_services
  export DEBIAN_FRONTEND=noninteractive
  local quiet=(-q -o "DPkg::Lock::Timeout=300" -o "Dpkg::Use-Pty=0")
  local log
  log=$(mktemp)
  {
    apt-get "${quiet[@]}" update &&
      apt-get "${quiet[@]}" install -y --no-install-recommends "$@"
  } >"$log" 2>&1 </dev/null 8>&- || {
    tail -n 30 "$log" >&2
    rm -f "$log"
    die "cannot install $*"
  }
  rm -f "$log"
}

target=${1:-}
if [ "$target" = check-go ]; then
  check_go
  exit
fi
if [ -z "$target" ] || [ -z "${needs[$target]:-}" ]; then
  sed -n 2,3p "$0" >&2
  exit 2
fi
[[ " packages release " = *" $target "* ]] || [ "$(id -u)" = 0 ] || die "make $target needs root, because it starts real containers; run: sudo make $target"
check_go
read -ra pairs <<<"${needs[$target]}"
mapfile -t packages < <(missing "${pairs[@]}")
[ ${#packages[@]} = 0 ] || [ "$(id -u)" = 0 ] || die "cannot install ${packages[*]}: it takes root"
if command -v busybox >/dev/null && ! busybox_is_static; then
  packages+=(busybox-static)
fi
[ ${#packages[@]} = 0 ] || install_packages "${packages[@]}"
