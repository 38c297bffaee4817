#!/bin/bash
# inside.sh v1|v2 FILE...
# Runs files of a suite (TESTS) with a runtime (RUNTIME), a directory for their files (DIR) and one for results (OUT). All of it happens in mount,
# pid, network, cgroup and ipc namespaces of its own, with a /dev and an /etc of its own, below a cgroup of its own in each hierarchy: odd specs
# reach nothing of the machine, and what a killed test leaves ends with them. A FILE is bats's or Python's, and may be a pattern. FILTER chooses
# tests by name: a regular expression for bats, words for Python. FILE_TIMEOUT is a file's time in seconds (an hour); one that is ended before all
# its tests have a result leaves OUT/FILE.cut. PREPARE is a script that lays out more, where a suite has one. On a NODE that is not bare the
# runtime has to be gpuledger's: it must refuse a container (refuses.sh) before the tests begin.
set -euo pipefail
[ $# -gt 1 ] || { sed -n 2,8p "$0" >&2; exit 2; }

if [ "${STEP:-}" = "" ]; then
  name=gpuledger-suite-$$ own=() # of this batch
  for hierarchy in /sys/fs/cgroup/*/ /sys/fs/cgroup/; do
    [ -e "$hierarchy/cgroup.procs" ] || continue
    mkdir "$hierarchy$name"
    own+=("$hierarchy$name")
    for file in cpuset.cpus cpuset.mems; do # without which a cgroup of version 1 takes no process
      [ ! -e "$hierarchy$name/$file" ] || [ -n "$(cat "$hierarchy$name/$file")" ] || cat "$hierarchy$file" >"$hierarchy$name/$file"
    done
  done
  status=0
  (
    for dir in "${own[@]}"; do echo "$BASHPID" >"$dir/cgroup.procs"; done
    STEP=namespaces exec unshare --mount --pid --net --ipc --cgroup --fork --kill-child --mount-proc --propagation private "$0" "$@"
  ) || status=$?
  for dir in "${own[@]}"; do # a frozen cgroup keeps its processes for ever
    find "$dir" -name freezer.state -exec sh -c 'echo THAWED >"$1"' thaw {} \; 2>/dev/null || true
    for _ in 1 2 3 4 5 6 7 8 9 10; do
      find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ -d "$dir" ] || break
      sleep 0.3
    done
  done
  exit $status
fi

# The devices that the tests name, and none of the machine's others.
devices() {
  local dev name kind major minor
  dev=$(mktemp -d -p "$DIR") && mount -t tmpfs -o mode=755 dev "$dev"
  while read -r name kind major minor; do
    mknod -m 666 "$dev/$name" "$kind" "$major" "$minor"
  done <<'NODES'
null c 1 3
zero c 1 5
full c 1 7
random c 1 8
urandom c 1 9
kmsg c 1 11
tty c 5 0
console c 5 1
fuse c 10 229
NODES
  mkdir -p "$dev"/{pts,shm,mqueue,net} && mknod -m 666 "$dev/net/tun" c 10 200
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$dev/pts" && mount -t tmpfs shm "$dev/shm" && mount -t mqueue mqueue "$dev/mqueue"
  ln -s pts/ptmx "$dev/ptmx" && ln -s /proc/self/fd "$dev/fd"
  mount --move "$dev" /dev
}

# hierarchy v1|v2: cgroups of that version alone, from this namespace's root on.
hierarchy() {
  local controllers controller
  mapfile -t controllers < <(awk '$3 == "cgroup" { sub(".*/", "", $2); print $2 }' /proc/self/mounts)
  umount -R /sys/fs/cgroup
  if [ "$1" = v2 ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    return
  fi
  mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
  for controller in "${controllers[@]}"; do
    mkdir "/sys/fs/cgroup/$controller"
    case $controller in
      systemd) mount -t cgroup -o none,name=systemd cgroup "/sys/fs/cgroup/$controller" ;;
      *) mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller" ;;
    esac
  done
}

# cover DIR: this machine's, where what is written stays in here.
cover() {
  local own
  own=$(mktemp -d -p "$DIR") && mount -t tmpfs cover "$own" && mkdir "$own/upper" "$own/work"
  mount -t overlay -o "lowerdir=$1,upperdir=$own/upper,workdir=$own/work" overlay "$1"
}

# etc: gpuledger's configuration at its usual place, as engines clear the environment.
etc() {
  cover /etc
  rm -rf /etc/gpuledger
  [ ! -e "$DIR/config.toml" ] || install -D -m 644 "$DIR/config.toml" /etc/gpuledger/config.toml
}

mount -t sysfs sysfs /sys 2>/dev/null || true # of this network namespace
[ -e /sys/fs/cgroup/cgroup.procs ] || [ -n "$(ls /sys/fs/cgroup)" ] || umount /sys
hierarchy "$1"
devices
etc
ip link set lo up
shift
mkdir -p "$DIR/bin" # runc's checkpoint.bats and netdev.bats wait for udev, which is not here
printf '#!/bin/sh\nexit 0\n' >"$DIR/bin/udevadm" && chmod 755 "$DIR/bin/udevadm"
export PATH=$DIR/bin:$PATH TMPDIR=$DIR/bats BATS_TMPDIR=$DIR/bats BATS_TEST_TIMEOUT=${BATS_TEST_TIMEOUT:-60} OUT FILTER
FILE_TIMEOUT=${FILE_TIMEOUT:-3600}
export RUNC=$RUNTIME OCI_RUNTIME=$RUNTIME RUN_TESTS=$FILTER # as runc's and crun's tests call them
[ -n "$FILTER" ] || unset RUN_TESTS
mkfifo "$DIR/input" && exec 9<>"$DIR/input" # an input without an end, for terminals
cd "$TESTS"
# shellcheck source=/dev/null
[ ! -e "$PREPARE" ] || . "$PREPARE"
[ "$NODE" = bare ] || "$REFUSES" "$RUNTIME" "$NODE"
# shellcheck disable=SC2048 # they may be patterns
for file in $*; do
  [ -e "$file" ] || { echo "there is no $file in $TESTS" >&2; exit 1; }
done
# complete FILE.tap: all tests of the plan have a result.
complete() { awk '/^1\.\.[0-9]+/ { plan = substr($0, 4) + 0; known = 1 } /^(not )?ok [0-9]+ / { n++ } END { exit !(known && n == plan) }' "$1" 2>/dev/null; }

# thaw: a process that a test froze cannot end before, not even with its pid namespace.
thaw() { find /sys/fs/cgroup -name freezer.state -exec sh -c 'echo THAWED >"$1"' thaw {} \; 2>/dev/null || true; }

# shellcheck disable=SC2048 # they may be patterns
for file in $*; do
  # shellcheck disable=SC2016 # they are the inner shell's
  case $file in
# They keep their containers where they are called, and one takes pids to have five digits. Their messages have no end of line, and would hide results.
    *.py) messages='"$OUT/$FILE.err"' command='sh -c "echo 20000 >/proc/sys/kernel/ns_last_pid; cd \"\$DIR/bats\" && exec python3 \"\$TESTS/\$FILE\""' ;;
    *) messages='&1' command='bats --tap ${FILTER:+-f "$FILTER"} "$FILE"' ;;
  esac
  # Some tests open /dev/tty, and script gives them one. What a test leaves running holds bats up for ever: it ends with a pid namespace for
  # each file.
  # shellcheck disable=SC2016
  FILE=$file script -qec "exec unshare --pid --fork --kill-child --mount --mount-proc $command"' >"$OUT/$FILE.tap" 2>'"$messages" \
    /dev/null <"$DIR/input" >/dev/null 2>&1 &
  left=$FILE_TIMEOUT
  while [ "$left" -gt 0 ] && kill -0 $! 2>/dev/null; do
    sleep 1
    left=$((left - 1))
    [ "$left" -le 10 ] || ! complete "$OUT/$file.tap" || { thaw; left=10; }
  done
  if kill -0 $! 2>/dev/null && ! complete "$OUT/$file.tap"; then
    echo "$FILE_TIMEOUT s" >"$OUT/$file.cut"
  fi
  thaw
  kill $! 2>/dev/null || true
  wait $! || true
done
