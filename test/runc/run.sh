#!/bin/bash
# run.sh [RUNC-CGROUP[,...]] [FILE.bats...]
# Runs runc's own integration tests bare and through gpuledger-runtime, on a node with GPUs and on one without an inventory, and compares
# test by test. RUNC-CGROUP: newest-v1, newest-v2, debian-v1, debian-v2 (default: all). Exit status 1 where a test's result is another one through
# us, and differences.txt does not explain it.
# Results: .cache/runc-suite/out/RUNC-CGROUP/NODE/FILE.tap. Root, Debian 12; some 20 minutes for all on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin
repo=$PWD cache=$PWD/.cache/runc-suite here=$PWD/test/runc
nodes=(bare inventory none)

say() { echo "test-runc: $*" >&2; }
die() { say "$*"; exit 1; }

# images: root file systems of what this machine and Debian's mirror have; runc's own would come from the network at each test.
images() {
  local root applet
  if [ ! -e "$cache/busybox.tar" ]; then
    root=$(mktemp -d) && chmod 755 "$root"
    mkdir -p "$root"/{bin,dev,etc/network,home,lib,root,tmp,usr/bin,usr/sbin,var/spool/mail,var/www,sbin} && chmod 1777 "$root/tmp"
    cp "$(command -v busybox)" "$root/bin/busybox"
    for applet in $(busybox --list); do
      [ "$applet" = busybox ] || ln "$root/bin/busybox" "$root/bin/$applet"
    done
    printf 'root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n' >"$root/etc/passwd"
    printf 'root:x:0:\ndaemon:x:1:\ntty:x:5:\nusers:x:100:\nnogroup:x:65534:\n' >"$root/etc/group"
    tar -C "$root" -cf "$cache/busybox.tar.new" . && mv "$cache/busybox.tar.new" "$cache/busybox.tar"
    rm -rf --one-file-system "$root"
  fi
  if [ ! -e "$cache/debian.tar" ]; then
    say "making a root file system of Debian, once"
    # shellcheck disable=SC2016 # it is the inner shell's
    unshare --mount --propagation private bash -euo pipefail -c '
      mount -t tmpfs -o mode=755,dev,suid debian /mnt
      mirror=$(awk "/^URIs:/ { print \$2; exit } \$1 == \"deb\" { print \$2; exit }" /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true)
      debootstrap --variant=minbase --include=libc-bin,libseccomp2 bookworm /mnt "${mirror:-http://deb.debian.org/debian}"
      rm -rf /mnt/var/cache/apt/* /mnt/var/lib/apt/lists/* /mnt/usr/share/{doc,locale,man,zoneinfo}/*
      tar -C /mnt --exclude "./dev/*" -cf "$1.new" . && mv "$1.new" "$1"' debian "$cache/debian.tar" >"$cache/debootstrap.log" 2>&1 ||
      die "cannot make a root file system of Debian: $(tail -n 1 "$cache/debootstrap.log")"
  fi
}

# suite ENGINE: runc's tests as its Go module has them, with their helpers, in a directory that they can write to.
suite() {
  local source dir=$cache/$1 file limit
  source=$(cd "test/engines/$1" && go list -m -f '{{.Dir}}' github.com/opencontainers/runc)
  rm -rf "$dir" && mkdir -p "$dir"
  cp -r "$source/tests" "$dir/"
  [ ! -d "$source/contrib" ] || cp -r "$source/contrib" "$dir/"
  chmod -R u+w "$dir"
  find "$dir" \( -name '*.sh' -o -name '*.bats' \) -exec chmod +x {} + # the module's zip has no modes
  if [ -d "$dir/tests/cmd" ]; then
    mkdir "$dir/tests/cmd/_bin" && cp .cache/engines/"$1"/* "$dir/tests/cmd/_bin/"
  fi
  for file in recvtty sd-helper seccompagent; do
    [ ! -d "$dir/contrib/cmd/$file" ] || cp ".cache/engines/$1/$file" "$dir/contrib/cmd/$file/"
  done
  for file in busybox debian; do
    ln -s "$cache/$file.tar" "$dir/tests/integration/testdata/$file-$(go env GOARCH).tar.xz"
  done
  # A root without CAP_SYS_RESOURCE cannot raise its limits.
  limit=$(ulimit -Hn)
  [ "$limit" = unlimited ] || [ "$limit" -ge 65536 ] || sed -i 's/65536/16384/g' "$dir/tests/integration/rlimits.bats" 2>/dev/null || true
  # A kernel without dummy network devices has others that are as good.
  unshare --net ip link add gpuledger0 type dummy 2>/dev/null || sed -i 's/type dummy/type ifb/' "$dir"/tests/integration/*.bats
}

# configure NODE DIR RUNC: a node of two simulated GPUs, or one without any inventory and as it is by default. Says which runc the tests get.
configure() {
  local dir=$2
  [ "$1" != bare ] || { echo "$3"; return; }
  mkdir -m 700 "$dir/state" "$dir/run"
  printf 'state_dir = "%s/state"\nrun_dir = "%s/run"\n[runtime]\npath = ["%s"]\n[audit]\nfile = "%s/audit.jsonl"\n' "$dir" "$dir" "$3" "$dir" >"$dir/config.toml"
  if [ "$1" = inventory ]; then
    printf '[inventory]\nsource = "simulated"\nfile = "%s/gpus.json"\n' "$dir" >>"$dir/config.toml"
    bin/gpuledger inventory simulate --gpus 2 --memory 80GiB --out "$dir/gpus.json" >/dev/null
    GPULEDGER_CONFIG=$dir/config.toml bin/gpuledger inventory refresh >/dev/null
  fi
  ln -s "$repo/bin/gpuledger-runtime" "$dir/runc" # help.bats looks for the name by which it calls runc
  echo "$dir/runc"
}

# batch CASE NODE OUT FILTER FILE...: runs test files, in namespaces and a cgroup of their own, and leaves nothing of it.
batch() {
  local case=$1 node=$2 out=$3 filter=$4 engine real dir status=0
  case ${case%-*} in
    newest) engine=runc-suite real=$repo/.cache/engines/runc/runc ;;
    debian) engine=runc-suite-1.1 real=$(command -v runc) ;;
  esac
  dir=$(mktemp -d -p "$work") && chmod 755 "$dir" && mkdir -m 755 "$dir/bats"
  mkdir -p "$out"
  RUNC=$(configure "$node" "$dir" "$real") OUT=$out FILTER=$filter DIR=$dir SUITE=$cache/$engine GPULEDGER_CONFIG=$dir/config.toml \
    nice "$here/inside.sh" "${case##*-}" "${@:5}" || status=$?
  [ ! -e "$dir/audit.jsonl" ] || cp "$dir/audit.jsonl" "$out/"
  rm -rf --one-file-system "$dir"
  [ "$status" = 0 ] || die "cannot run runc's tests for $case ($node)"
}

# together COMMAND...: runs each word as a command, all at once: most of what runc's tests do is to wait.
together() {
  local command pid pids=() status=0
  for command; do
    eval "$command" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid" || status=1
  done
  return $status
}

# compare BARE WRAPPED [EXPECTED]: the tests whose results differ, as lines of FILE, name, and the two results; and those of such a list
# that did not run.
compare() { awk -f "$here/compare.awk" -v dir1="$1/" -v expected="${3:-}" "$1"/*.tap "$2"/*.tap; }

count() { awk -f "$here/compare.awk" -v count=1 "$1"/*.tap; }

# settle CASE NODE: runs what differs again, bare and wrapped, until it is the same or has differed three times: other processes of the
# machine disturb some of runc's tests.
settle() {
  local case=$1 node=$2 try file names left=$cache/out/$1/$2.differ
  compare "$cache/out/$case/bare" "$cache/out/$case/$node" >"$left"
  for try in 2 3; do
    [ -s "$left" ] || return 0
    cut -f 1 "$left" | sort -u >"$left.files"
    while read -r file <&8; do
      names=$(awk -F '\t' -v file="$file" '$1 == file { gsub(/[][\\.*^$+?(){}|\/]/, "\\\\&", $2); printf "%s^%s$", sep, $2; sep = "|" }' "$left")
      for again in bare "$node"; do # not at once: it may be that which disturbed it
        batch "$case" "$again" "$cache/out/$case/$node.try$try/$again" "$names" "$file"
      done
    done 8<"$left.files"
    compare "$cache/out/$case/$node.try$try/bare" "$cache/out/$case/$node.try$try/$node" "$left" >"$left.new"
    mv "$left.new" "$left"
  done
}

[ "$(id -u)" = 0 ] || die "it takes root"
for program in bin/gpuledger bin/gpuledger-runtime; do
  [ -x $program ] || die "$program is not there; run make build first"
done
IFS=, read -ra cases <<<"${1:-newest-v1,newest-v2,debian-v1,debian-v2}"
[ $# = 0 ] || shift
for case in "${cases[@]}"; do
  [[ $case =~ ^(newest|debian)-v[12]$ ]] || { sed -n 2,6p "$0" >&2; exit 2; }
done
mkdir -p "$cache"
work=$(mktemp -d "${TMPDIR:-/tmp}/gpuledger-runc-XXXXXX") && chmod 755 "$work"
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM HUP
test/engines/build.sh runc runc-suite runc-suite-1.1
images
suite runc-suite
suite runc-suite-1.1

failed=0
printf '%-10s %-10s %5s %5s %5s %5s  %s\n' runc node tests pass fail skip 'differs from bare'
for case in "${cases[@]}"; do
  if [ "${case##*-}" = v1 ] && ! grep -q ' /sys/fs/cgroup/devices cgroup ' /proc/self/mounts; then
    say "$case is left out: this machine has no cgroup v1 devices controller"
    continue
  fi
  rm -rf "${cache:?}/out/$case"
  batches=()
  for node in "${nodes[@]}"; do
    batches+=("batch $case $node $cache/out/$case/$node '' ${*@Q}")
  done
  together "${batches[@]}" || exit 1
  for node in "${nodes[@]}"; do
    differ=
    if [ "$node" != bare ]; then
      settle "$case" "$node"
      unexplained=$(awk -F '\t' 'NR == FNR { if (!/^#/ && NF) known[$1 FS $2] = 1; next } !($1 FS $2 in known)' "$here/differences.txt" "$cache/out/$case/$node.differ")
      differ="$(wc -l <"$cache/out/$case/$node.differ") ($(grep -c . <<<"$unexplained" || true) unexplained)"
    fi
    # shellcheck disable=SC2046,SC2183 # four numbers
    printf '%-10s %-10s %5s %5s %5s %5s  %s\n' "$case" "$node" $(count "$cache/out/$case/$node") "$differ"
    [ "$node" = bare ] || [ -z "$unexplained" ] || { failed=1; awk -F '\t' '{ printf "  %s: %s: bare %s, through us %s\n", $1, $2, $3, $4 }' <<<"$unexplained"; }
  done
done
exit $failed
