#!/bin/bash
# cgroup2.sh CMD [ARG...]
# Runs CMD in a mount namespace of its own where /sys/fs/cgroup is cgroup v2 alone.
# On a hybrid machine the controllers belong to v1: specs for this namespace carry no cpu, memory or pids limit.
# Device rules work all the same: on v2 they are an eBPF program, not a controller.
set -euo pipefail
[ $# -gt 0 ] || { sed -n 2,5p "$0" >&2; exit 2; }
exec unshare --mount --propagation private bash -c '
  umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 1
  exec "$@"' cgroup2 "$@"
