#!/bin/bash
# leftovers.sh CMD [ARG...]
# Runs CMD with an empty TMPDIR and fails when it leaves a mount, a cgroup, a process, a container's state or a file behind,
# or a shared directory with another mode.
# What others do on the machine meanwhile does not count: CMD has mounts, cgroups and pids of its own.
# When leftovers.sh is killed, CMD is, too.
set -uo pipefail
[ $# -gt 0 ] || { sed -n 2,6p "$0" >&2; exit 2; }

die() { echo "leftovers.sh: $*" >&2; exit 1; }

# The directories that gpuledger, runc and crun use by default. A test that forgets to set its own is
# found here.
places=(/run/gpuledger /var/lib/gpuledger /var/log/gpuledger /etc/gpuledger /run/runc /run/crun)

# What engines, of this machine or of a test, keep in /run: CMD begins without it.
engines=' cdi containerd containers crio crun docker gpuledger libpod netns nvidia podman runc '

# hierarchies: the mount points of cgroups, v1's and v2's.
hierarchies() {
  awk '{ for (i = 7; $i != "-"; i++); } $(i + 1) ~ /^cgroup2?$/ && $5 "/" ~ "^/sys/fs/cgroup/" { print $5 }' /proc/self/mountinfo | sort -u
}

# ---------------------------------------------------------------- outside: cgroups for CMD, and their end

# enable CGROUP: lets cgroups below one of v2 use its controllers, as runc does on its way to a container's.
enable() {
  local controller controllers
  read -ra controllers <"$1/cgroup.controllers"
  for controller in "${controllers[@]}"; do
    echo "+$controller" >"$1/cgroup.subtree_control"
  done 2>/dev/null
}

# enter: moves this shell into a cgroup of its own in each hierarchy.
enter() {
  local root file
  for root in "${roots[@]}"; do
    [ ! -e "$root/cgroup.controllers" ] || enable "$root"
    mkdir "$root/$run" || return
    for file in cpuset.cpus cpuset.mems; do # empty in a new one of v1, which then takes no process in
      [ -e "$root/cgroup.controllers" ] || [ ! -e "$root/$file" ] || cat "$root/$file" >"$root/$run/$file" || return
    done
    echo 0 >"$root/$run/cgroup.procs" || return
  done
}

# tidy: CMD's processes have ended. A cgroup stays busy for a moment after its last process.
tidy() {
  local root
  for root in "${roots[@]}"; do
    for _ in {1..600}; do
      [ -d "$root/$run" ] || break
      find "$root/$run" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
  done
  rm -rf --one-file-system "$TMPDIR"
}

outside() {
  TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/gpuledger-test-XXXXXX") || exit 1
  chmod 711 "$TMPDIR" || exit 1 # programs of other users are run from below it
  export TMPDIR
  run=$(basename "$TMPDIR")
  mapfile -t roots < <(hierarchies)
  trap tidy EXIT
  (
    enter || die "cannot make a cgroup of its own for $1"
    exec setpriv --pdeathsig KILL unshare --mount --cgroup --ipc --propagation private "$0" :lay "$@"
  ) <&0 &
  # A shell that waits for a command in the foreground would take its signal only after that.
  trap 'kill -KILL $!; exit 130' INT
  trap 'kill -KILL $!; exit 143' TERM HUP
  wait $!
}

# ---------------------------------------------------------------- inside: what CMD sees

# lay: shows CMD its own cgroups as if they were all, and a /run without the machine's engines.
lay() {
  local run root roots entry place
  run=$(basename "$TMPDIR")
  mapfile -t roots < <(hierarchies)
  { mount -t tmpfs -o mode=755 tmpfs "$TMPDIR" && mkdir "$TMPDIR"/{cgroup,run}; } || die "cannot lay out $TMPDIR"
  [ ! -e /sys/fs/cgroup/cgroup.controllers ] || roots=(/sys/fs/cgroup) # others are mounts into it
  for root in "${roots[@]}"; do
    { mkdir -p "$TMPDIR${root#/sys/fs}" && mount --bind "$root/$run" "$TMPDIR${root#/sys/fs}"; } || die "cannot lay out $root"
  done
  [ -e "$TMPDIR/cgroup/cgroup.controllers" ] || find /sys/fs/cgroup -maxdepth 1 -type l -exec cp -P {} "$TMPDIR/cgroup/" \;
  { umount -R /sys/fs/cgroup && mount --rbind "$TMPDIR/cgroup" /sys/fs/cgroup; } || die "cannot lay out /sys/fs/cgroup"
  for root in "${roots[@]}"; do
    [ -e "$root/cgroup.controllers" ] || continue
    # v2 wants all processes in leaves, or cgroups beside them have no controllers.
    mkdir "$root/init" && echo 0 >"$root/init/cgroup.procs" && enable "$root"
  done
  shopt -s dotglob nullglob
  for entry in /run/*; do # what goes away meanwhile is left out
    [[ $engines != *" ${entry#/run/} "* ]] || continue
    if [ -L "$entry" ]; then
      cp -P "$entry" "$TMPDIR/run/"
    elif [ -d "$entry" ]; then
      mkdir "$TMPDIR$entry" && mount --rbind "$entry" "$TMPDIR$entry"
    elif [ -e "$entry" ]; then
      : >"$TMPDIR$entry" && mount --bind "$entry" "$TMPDIR$entry"
    fi
  done 2>/dev/null
  mount --rbind "$TMPDIR/run" /run || die "cannot lay out /run"
  for place in "${places[@]}"; do
    [ ! -d "$place" ] || mount -t tmpfs -o mode=755 tmpfs "$place" || die "cannot lay out $place"
  done
  umount -R "$TMPDIR" || die "cannot clear $TMPDIR"
  exec unshare --pid --fork --kill-child --mount-proc "$0" :watch "$@"
}

# processes: a line for each process but the first and this one. It starts none, which it would count.
processes() {
  local dir pid argv0
  for dir in /proc/[0-9]*; do
    pid=${dir#/proc/} argv0=
    { IFS= read -r -d '' argv0 <"$dir/cmdline"; } 2>/dev/null # nothing for a zombie
    [ "$pid" = 1 ] || [ "$pid" = "$BASHPID" ] || [ -z "$argv0" ] || echo "process $pid $argv0"
  done
}

# things: a line for each mount, cgroup and file that could stay, and for each directory that a careless chmod would find.
things() {
  local place
  awk '{ print "mount " $5 }' /proc/self/mountinfo
  find /sys/fs/cgroup -mindepth 1 -type d -printf 'cgroup %p\n'
  for place in "${places[@]}"; do
    find "$place" -printf 'file %p\n' 2>/dev/null
  done
  find "$TMPDIR" -mindepth 1 -xdev -printf 'file %p\n'
  stat -c 'mode %a of %n' / /dev /dev/shm /etc /home /opt /root /tmp /usr /var /var/lib /var/tmp 2>/dev/null || : # a machine may lack one
}

# watch: as the first process of its pid namespace, runs CMD and compares. The kernel ends what still runs when this returns.
watch() {
  local status before left i
  before=$(things | sort)
  "$@"
  status=$?
  for ((i = 0; i < ${LEFTOVERS_TRIES:-60}; i++)); do # what is ending may need long on a busy machine
    left=$(processes; things | sort | comm -13 <(echo "$before") -) || left+="what there is cannot be listed"
    [ -n "$left" ] || exit "$status"
    sleep 0.3
  done
  { echo "leftovers.sh: these stayed behind:"; head -n 40 <<<"$left" | sed 's/^/  /'; } >&2
  [ "$status" != 0 ] || status=1
  exit "$status"
}

case $1 in
  :lay | :watch) "${1#:}" "${@:2}" ;;
  *) outside "$@" ;;
esac
