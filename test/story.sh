# story.sh: what demo.sh and test-gpu.sh have in common. They set $me, the make target.
#
# A story runs in mount and pid namespaces of its own and in a folder under .cache: however it ends, its containers end
# with it, no mount can stay, and the outer half removes the folder and the cgroups. Nothing of the machine is configured.
# With PREBUILT set, bin/ is taken as it is, with test/testdata/gpu.c as bin/gpu and work.c as bin/work: for a machine that has no Go.
# shellcheck shell=bash disable=SC2154 # me

die() { echo "$me: $*" >&2; exit 1; }

# ---------------------------------------------------------------- outside: build, make room, clean up

outside() {
  [ "$(id -u)" = 0 ] || die "this needs root, because it starts real containers; run: sudo make $me"
  local log
  mkdir -p .cache
  STORY_DIR=$(mktemp -d "$PWD/.cache/$me.XXXXXX")
  STORY_CGROUP=gpuledger-$me-$$
  export STORY_DIR STORY_CGROUP
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  log=$STORY_DIR/build.log
  if [ -n "${PREBUILT:-}" ]; then
    cp bin/gpu bin/work "$STORY_DIR"
  else
    echo "\$ make build"
    make --no-print-directory build >"$log" 2>&1 || { cat "$log" >&2; die "cannot build"; }
    gcc -o "$STORY_DIR/gpu" test/testdata/gpu.c -ldl && gcc -O1 -o "$STORY_DIR/work" test/testdata/work.c -ldl || die "cannot build the clients"
  fi
  real_gpu || stand_in >"$log" 2>&1 || { cat "$log" >&2; die "cannot build the stand-in driver"; }
  unshare --mount --pid --fork --kill-child --mount-proc --propagation private "test/$me.sh" inside "$@"
}

# stand_in: the driver of a machine that has none, with its MPS.
stand_in() {
  test/fakedriver/build.sh "$STORY_DIR/driver" && CGO_ENABLED=0 go build -p 2 -trimpath -o "$STORY_DIR/driver/usr/bin/nvidia-cuda-mps-control" ./test/fakemps &&
    ln "$STORY_DIR/driver/usr/bin/nvidia-cuda-mps-control" "$STORY_DIR/driver/usr/bin/nvidia-cuda-mps-server"
}

clean_up() {
  local group i
  for group in /sys/fs/cgroup/"$STORY_CGROUP" /sys/fs/cgroup/*/"$STORY_CGROUP"; do
    for ((i = 0; i < 50; i++)); do # a cgroup stays busy for a moment after its last process
      [ -d "$group" ] || break
      find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
  done
  rm -rf --one-file-system "$STORY_DIR"
}

# ---------------------------------------------------------------- how the story is told

bold='' dim='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\e[1m' dim=$'\e[2m' plain=$'\e[0m'
fi

chapter() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
say() { printf '%s\n' "$*"; }

# show ARG...: print a command as one would type it.
show() {
  local word line=
  for word; do
    case $word in
      '' | *[!A-Za-z0-9_./:=,@%+-]*) word="'${word//\'/\'\\\'\'}'" ;;
    esac
    line+=" $word"
  done
  printf '%s$%s%s\n' "$bold" "$line" "$plain"
}

# attempt CMD...: print it, run it, print what it says; its status is in $status and its words stay in the file "said".
# A file and not a pipe: a container that stays holds its output open.
attempt() {
  show "$@"
  status=0
  "$@" >said 2>&1 </dev/null || status=$?
  sed "s/^/  /" said
}

run() {
  attempt "$@"
  [ "$status" = 0 ] || die "that should have worked, but it ended with status $status"
}

# refused CODE CMD...: the command must fail and name the code.
refused() {
  local code=$1
  shift
  attempt "$@"
  [ "$status" != 0 ] || die "that should have been refused"
  grep -qF "($code)" said || die "that should have been refused as $code"
  printf '  %s(exit status %s)%s\n' "$dim" "$status" "$plain"
}

# says TEXT: the last command's output must contain it.
says() { grep -qF -- "$1" said || die "the output above should contain: $1"; }

# look CONTAINER COMMAND: what a shell in the container sees. Failing is part of the story.
look() {
  attempt gpuledger-runtime --root run exec "$1" sh -c "$2"
}

# reference: the one that "gpuledger grant" has just printed.
reference() { grep -oE 'g-[a-z]{12}\.[0-9a-f]{32}' said | head -n 1; }

# ---------------------------------------------------------------- bundles

# bundle NAME JQ-FILTER...: an OCI bundle as an engine makes it: busybox, the usual capabilities, no device but the standard ones.
bundle() {
  local name=$1 applet filter
  shift
  mkdir -p "$name/rootfs/bin"
  cp "$(command -v busybox)" "$name/rootfs/bin/busybox"
  for applet in sh ls sleep mknod head; do
    ln -sf busybox "$name/rootfs/bin/$applet"
  done
  (cd "$name" && runc spec)
  # shellcheck disable=SC2016 # $name is jq's
  edit "$name" '
    .process.terminal = false
    | .process.args = ["sleep", "3600"]
    | .root.readonly = false
    | .hostname = $name
    | del(.process.rlimits)
    | .process.capabilities |= map_values(["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_MKNOD", "CAP_SETGID", "CAP_SETUID"])
    | del(.process.capabilities.ambient)
    | .linux.cgroupsPath = "/" + env.STORY_CGROUP + "/" + $name'
  for filter; do
    edit "$name" "$filter"
  done
}

edit() {
  jq --arg name "$1" "$2" "$1/config.json" >"$1/config.new"
  mv "$1/config.new" "$1/config.json"
}

# programs NAME: gives the bundle this machine's C library, as an image of its kind has it, and programs that ask for GPU memory.
programs() {
  local loader lib library
  loader=$(readlink -f /lib64/ld-linux-x86-64.so.2 || readlink -f /lib/ld-linux-aarch64.so.1)
  lib=$1/rootfs/$(dirname "${loader#/usr/}")
  mkdir -p "$lib" "$1/rootfs/lib64" "$1/rootfs/run" "$1/rootfs/tmp"
  for library in "${loader##*/}" libc.so.6 libdl.so.2 libpthread.so.0 libm.so.6 librt.so.1; do
    cp -L "$(dirname "$loader")/$library" "$lib/$library"
  done
  [ ! -e /lib64/ld-linux-x86-64.so.2 ] || ln -s "/${loader#/usr/}" "$1/rootfs/lib64/ld-linux-x86-64.so.2"
  cp gpu work "$1/rootfs/bin"
}

annotate() { edit "$1" ".annotations[\"gpuledger.dev/grant\"] = \"$2\""; }

# ---------------------------------------------------------------- the node

# real_gpu: a driver is loaded and answers.
real_gpu() { [ -d /proc/driver/nvidia ] || nvidia-smi -L >/dev/null 2>&1; }

write_config() {
  cat >config.toml <<EOF
state_dir = "$PWD/state"
run_dir   = "$PWD/bindings"
engine    = "none"
[inventory]
source = "$1"
file   = "$2"
driver_root = "$3"
[audit]
file = "$PWD/audit.jsonl"
EOF
}

# gpu FIELD INDEX: from the snapshot, as gpus --json prints it.
gpu() { gpuledger gpus --json | jq -r --argjson index "$2" "[.gpus[] | select(.parent == null)][\$index].$1"; }

mib() { echo $(($1 >> 20)); }

# size MIB: as a person writes it.
size() { (($1 % 1024)) && echo "$1MiB" || echo "$(($1 / 1024))GiB"; }

# enter: into the folder, with what was built.
enter() {
  PATH=$PWD/bin:$PATH
  # The real runtime's own name for things must not depend on how the caller was started.
  unset XDG_RUNTIME_DIR
  cd "$STORY_DIR" || return
}

# book NAME: gives the bundle of a container with GPU 0 the stand-in driver's book, where it keeps account of what is allocated.
book() {
  mkdir -p book
  [ -e book/devices ] || printf '%s %s Stand-in\n' "$(gpu uuid 0)" "$(mib "$(gpu memory 0)")" >book/devices
  edit "$1" '.mounts += [{destination: "/run/fakedriver", type: "bind", source: (env.PWD + "/book"), options: ["bind", "rw"]}]'
}
