#!/bin/bash
# cgroup1.sh CMD [ARG...]
# Runs CMD in a mount namespace of its own that shows cgroup v1 only. crun refuses the hybrid layout (v1 beside /sys/fs/cgroup/unified).
# Exit status 77: this machine has no v1 hierarchy, so there is nothing to show.
set -euo pipefail
[ $# -gt 0 ] || { sed -n 2,4p "$0" >&2; exit 2; }
grep -q ' /sys/fs/cgroup/devices cgroup ' /proc/self/mounts || { echo "cgroup1.sh: this machine has no cgroup v1 devices controller" >&2; exit 77; }
exec unshare --mount --propagation private bash -c '
  ! mountpoint -q /sys/fs/cgroup/unified || umount -R /sys/fs/cgroup/unified
  exec "$@"' cgroup1 "$@"
