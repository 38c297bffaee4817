#!/bin/bash
# leftovers.sh CMD [ARG...]
# Runs CMD with an empty TMPDIR and fails when it leaves a mount, a cgroup, a container's state or a file behind on the machine.
set -uo pipefail
[ $# -gt 0 ] || { sed -n 2,3p "$0" >&2; exit 2; }

# Where gpuledger, runc and crun put things when nobody tells them otherwise: a test that forgets to say is found here.
places=(/run/gpuledger /var/lib/gpuledger /var/log/gpuledger /etc/gpuledger /run/runc /run/crun)

# snapshot: one line for each thing that could stay. Cgroups of the machine's own services and engines come and go by themselves.
snapshot() {
  local place
  awk '{ print "mount " $5 }' /proc/self/mountinfo
  find /sys/fs/cgroup -mindepth 1 -type d \( \( -name '*.slice' -o -name '*.scope' -o -name '*.service' -o -name docker -o -name kubepods \) \
    -prune -o -printf 'cgroup %p\n' \) 2>/dev/null
  for place in "${places[@]}"; do
    find "$place" -printf 'file %p\n' 2>/dev/null
  done
}

before=$(mktemp) && after=$(mktemp) || exit 1
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/gpuledger-test-XXXXXX") || exit 1
export TMPDIR
snapshot | sort >"$before"

"$@"
status=$?

# A cgroup stays busy for a moment after its last process.
for _ in 1 2 3 4 5 6 7 8 9 10; do
  { snapshot; find "$TMPDIR" -mindepth 1 -xdev -printf 'file %p\n'; } | sort >"$after"
  left=$(comm -13 "$before" "$after")
  [ -n "$left" ] || break
  sleep 0.3
done
rm -f "$before" "$after"
# Never through a mount point: what lies behind it may be the machine's.
grep -qF " $TMPDIR/" /proc/self/mountinfo || rm -rf --one-file-system "$TMPDIR"
if [ -n "$left" ]; then
  { echo "leftovers.sh: these stayed behind:"; head -n 40 <<<"$left" | sed 's/^/  /'; } >&2
  [ "$status" != 0 ] || status=1
fi
exit "$status"
