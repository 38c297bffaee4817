#!/bin/bash
# packaging/boot.sh ROOT CGROUP PIDFILE: boots the system in the directory ROOT with its own
# systemd, in namespaces of its own and below the cgroup CGROUP of each hierarchy. PIDFILE gets its
# process 1. The script returns when that ends, and the cgroups are gone then.
# ROOT must be a mount point, and the caller's mount namespace a private one. Nothing in it reaches
# the network or the machine's devices.
set -euo pipefail
root=$1 group=$2 pidfile=$3
: "${SYSTEMD_OPTIONS:=}" # what the kernel's command line would tell systemd

hierarchies() { awk '$3 == "cgroup" || $3 == "cgroup2" { print $2, $3, $4 }' /proc/self/mounts; }

inside() {
  local pid
  read -r pid _ </proc/self/stat # it is still the caller's /proc: the number there
  echo "$pid" >"$pidfile.new"
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  else
    mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
    local path kind options
    while read -r path kind options; do
      mkdir -p "$root$path"
      if [ "$kind" = cgroup2 ]; then
        mount -t cgroup2 cgroup2 "$root$path"
      else
        options=$(tr , '\n' <<<"$options" | grep -vxE 'rw|ro|relatime|nosuid|nodev|noexec|xattr|clone_children|cpuset_v2_mode|release_agent=.*' | paste -sd ,)
        case $options in name=*) options=none,$options ;; esac
        mount -t cgroup -o "$options" cgroup "$root$path"
      fi
    done < <(hierarchies)
  fi
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  local name numbers
  while read -r name numbers; do
    # shellcheck disable=SC2086 # a major and a minor number
    mknod -m 666 "$root/dev/$name" c $numbers
  done <<<$'null 1 3\nzero 1 5\nfull 1 7\nrandom 1 8\nurandom 1 9\ntty 5 0'
  ln -s null "$root/dev/console"
  mkdir "$root/dev/shm" "$root/dev/pts"
  mv "$pidfile.new" "$pidfile"
  mkdir -p "$root/packages/machine"
  cd "$root"
  pivot_root . packages/machine
  umount -l /packages/machine
  # shellcheck disable=SC2086 # words
  exec /usr/bin/env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target $SYSTEMD_OPTIONS
}

clean() {
  local path kind options i
  while read -r path kind options; do
    for ((i = 0; i < 100; i++)); do # a cgroup stays busy for a moment after its last process
      [ -d "$path/$group" ] || break
      find "$path/$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
  done < <(hierarchies)
}

if [ "${4:-}" = inside ]; then
  inside
fi
trap clean EXIT
(
  while read -r path kind options; do
    mkdir -p "$path/$group"
    for file in cpuset.cpus cpuset.mems; do # a new cpuset of v1 is empty and takes nobody in
      [ ! -e "$path/$group/$file" ] || [ "$kind" = cgroup2 ] || cat "$path/$file" >"$path/$group/$file"
    done
    echo "$BASHPID" >"$path/$group/cgroup.procs"
  done < <(hierarchies)
  exec unshare --cgroup --mount --pid --fork --kill-child --ipc --uts --net --propagation private "$0" "$root" "$group" "$pidfile" inside
) </dev/null || true
