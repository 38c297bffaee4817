# booted.sh: functions with which the tests of this directory boot the Debian in $root with its own
# systemd, and run commands in it. The caller calls directory, or sets $root, $work and $group.
# shellcheck shell=bash disable=SC2154

init= # the number of its process 1, once it has one
fail() { echo "FAIL: $*" >&2; exit 1; }
inside() { [ -n "$init" ] && nsenter --target "$init" --all --root --wd /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
trap '[ -z "${booted:-}" ] || shut' EXIT

# directory NAME: makes a directory for the test of this name. However the test ends, all that runs
# in it ends, and it is removed.
directory() {
  work=$(mktemp -d)
  root=$work/root
  group=gpuledger-$1-${work##*.}
  trap clean EXIT
  trap 'exit 130' INT TERM HUP
}

clean() {
  [ -z "${booted:-}" ] || shut
  ! mountpoint -q "$root" || umount -R "$root" 2>/dev/null || umount -R -l "$root"
  rm -rf --one-file-system "$work"
}

# eventually WHAT COMMAND...: waits for COMMAND to succeed, with a limit for slow machines.
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

# debian: makes $root a Debian 12 that can be booted.
debian() {
  packaging/roots.sh debian "$root"
  mount --bind "$root" "$root" # a runtime's pivot_root asks for a mount point above it
}

is_up() { [[ $(inside systemctl is-system-running 2>/dev/null) =~ ^(running|degraded)$ ]]; }

boot() {
  init=
  rm -f "$work/init"
  packaging/boot.sh "$root" "$group" "$work/init" >"$work/boot.log" 2>&1 &
  booted=$!
  eventually "the system has a process 1" test -s "$work/init"
  init=$(cat "$work/init")
  eventually "the system is up" is_up
}

shut() {
  kill -KILL "${init:-$booted}" 2>/dev/null || true
  wait "$booted" || true
  booted=
}
