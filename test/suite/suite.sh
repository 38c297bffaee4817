# suite.sh: what run.sh of test/runc, test/crun, test/podman and test/nvidia share: a runtime's or an engine's own tests run bare and through
# gpuledger-runtime, on a node with GPUs and on one without an inventory, and are compared test by test. run.sh sets
#   name      the suite's
#   known     a regular expression of the cases that there are; batch takes the end of one, v1 or v2, for its cgroups' version
#   engine    the engine that calls the runtime, where one does and its identities count
#   here      its directory, with differences.txt and, where something is to be laid out in the namespaces, prepare.sh
# and declares
#   place CASE   sets tests, the directory of the test files, and real, the runtime; or a batch of its own
# Results: .cache/NAME-suite/out/CASE/NODE/FILE.tap.
# shellcheck shell=bash disable=SC2154 # they are run.sh's
repo=$PWD cache=$PWD/.cache/$name-suite suite=$PWD/test/suite
nodes=(bare inventory none)

say() { echo "test-$name: $*" >&2; }
die() { say "$*"; exit 1; }
usage() { awk 'NR > 1 { if (!/^#/) exit; print }' "$here/run.sh" >&2; exit 2; }

# begin CASES: sets cases, and work to a directory that goes away at the end.
begin() {
  local program case
  [ "$(id -u)" = 0 ] || die "it takes root"
  for program in bin/gpuledger bin/gpuledger-runtime; do
    [ -x $program ] || die "$program is not there; run make build first"
  done
  IFS=, read -ra cases <<<"$1"
  for case in "${cases[@]}"; do
    [[ $case =~ ^($known)$ ]] || usage
  done
  mkdir -p "$cache"
  work=$(mktemp -d "${TMPDIR:-/tmp}/gpuledger-$name-XXXXXX") && chmod 755 "$work"
  trap 'rm -rf --one-file-system "$work"' EXIT
  trap 'exit 1' INT TERM HUP
}

# busybox_root DIR: a root file system of this machine's busybox.
busybox_root() {
  local applet
  mkdir -p "$1"/{bin,dev,etc/network,home,lib,root,tmp,usr/bin,usr/sbin,var/spool/mail,var/www,sbin} && chmod 1777 "$1/tmp"
  cp "$(command -v busybox)" "$1/bin/busybox"
  for applet in $(busybox --list); do
    [ "$applet" = busybox ] || ln "$1/bin/busybox" "$1/bin/$applet"
  done
  printf 'root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n' >"$1/etc/passwd"
  printf 'root:x:0:\ndaemon:x:1:\ntty:x:5:\nusers:x:100:\nnogroup:x:65534:\n' >"$1/etc/group"
}

# configure NODE DIR REAL: a node of two simulated GPUs, or one without any inventory and as it is by default. Prints which runtime the tests get.
configure() {
  local dir=$2
  [ "$1" != bare ] || { echo "$3"; return; }
  mkdir -m 700 "$dir/state" "$dir/run"
  [ -z "${engine:-}" ] || printf 'engine = "%s"\n' "$engine" >"$dir/config.toml"
  printf 'state_dir = "%s/state"\nrun_dir = "%s/run"\n[runtime]\npath = ["%s"]\n[audit]\nfile = "%s/audit.jsonl"\n' "$dir" "$dir" "$3" "$dir" >>"$dir/config.toml"
  if [ "$1" = inventory ]; then
    printf '[inventory]\nsource = "simulated"\nfile = "%s/gpus.json"\n' "$dir" >>"$dir/config.toml"
    bin/gpuledger inventory simulate --gpus 2 --memory 80GiB --out "$dir/gpus.json" >/dev/null
    GPULEDGER_CONFIG=$dir/config.toml bin/gpuledger inventory refresh >/dev/null
  fi
  ln -s "$repo/bin/gpuledger-runtime" "$dir/$(basename "$3")" # some tests look for the name by which they call it
  echo "$dir/$(basename "$3")"
}

# batch CASE NODE OUT FILTER FILE...: runs test files, in namespaces and a cgroup of their own, and leaves nothing of it.
batch() {
  local case=$1 node=$2 out=$3 filter=$4 dir status=0 tests real
  place "$case"
  dir=$(mktemp -d -p "$work") && chmod 755 "$dir" && mkdir -m 755 "$dir/bats"
  mkdir -p "$out"
  RUNTIME=$(configure "$node" "$dir" "$real") OUT=$out FILTER=$filter DIR=$dir TESTS=$tests CACHE=$cache PREPARE=$here/prepare.sh \
    nice "$suite/inside.sh" "${case##*-}" "${@:5}" || status=$?
  [ ! -e "$dir/audit.jsonl" ] || cp "$dir/audit.jsonl" "$out/"
  rm -rf --one-file-system "$dir"
  [ "$status" = 0 ] || die "cannot run the tests of $name for $case ($node)"
}

# together COMMAND...: runs each word as a command, all at once: most of what such tests do is to wait.
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
compare() { awk -f "$suite/compare.awk" -v dir1="$1/" -v expected="${3:-}" "$1"/*.tap "$2"/*.tap; }

# cut_files OUT: the files that were ended before all their tests had a result.
cut_files() {
  local file
  for file in "$1"/*.cut; do
    [ ! -e "$file" ] || printf '  %s: ended after %s (FILE_TIMEOUT), before all its tests had a result\n' "$(basename "${file%.cut}")" "$(cat "$file")"
  done
}

count() { awk -f "$suite/compare.awk" -v count=1 "$1"/*.tap; }

# settle CASE NODE: runs what differs again, bare and wrapped, until it is the same or has differed three times: other processes of the
# machine disturb some of the tests.
settle() {
  local case=$1 node=$2 try file names left=$cache/out/$1/$2.differ
  compare "$cache/out/$case/bare" "$cache/out/$case/$node" >"$left"
  for ((try = 2; try <= ${TRIES:-3}; try++)); do
    [ -s "$left" ] || return 0
    cut -f 1 "$left" | sort -u >"$left.files"
    while read -r file <&8; do
      names=$(awk -F '\t' -v file="$file" '
        $1 != file { next }
        file ~ /\.py$/ { printf "%s%s", sep, $2; sep = " "; next }
        { gsub(/[][\\.*^$+?(){}|\/]/, "\\\\&", $2); printf "%s^%s$", sep, $2; sep = "|" }' "$left")
      for again in bare "$node"; do # not at once: it may be that which disturbed it
        batch "$case" "$again" "$cache/out/$case/$node.try$try/$again" "$names" "$file"
      done
    done 8<"$left.files"
    compare "$cache/out/$case/$node.try$try/bare" "$cache/out/$case/$node.try$try/$node" "$left" >"$left.new"
    mv "$left.new" "$left"
  done
}

# all FILE...: runs the files for each of cases, prints how they end and fails where a difference is not explained.
all() {
  local case node batches differ unexplained cut failed=0
  printf '%-10s %-10s %5s %5s %5s %5s  %s\n' "$name" node tests pass fail skip 'differs from bare'
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
      differ='' unexplained=''
      if [ "$node" != bare ]; then
        settle "$case" "$node"
        unexplained=$(awk -F '\t' 'NR == FNR { if (!/^#/ && NF) known[$1 FS $2] = 1; next } !($1 FS $2 in known)' "$here/differences.txt" "$cache/out/$case/$node.differ")
        differ="$(wc -l <"$cache/out/$case/$node.differ") ($(grep -c . <<<"$unexplained" || true) unexplained)"
      fi
      # shellcheck disable=SC2046,SC2183 # four numbers
      printf '%-10s %-10s %5s %5s %5s %5s  %s\n' "$case" "$node" $(count "$cache/out/$case/$node") "$differ"
      cut=$(cut_files "$cache/out/$case/$node")
      [ -z "$cut" ] || { failed=1; echo "$cut"; }
      [ -z "$unexplained" ] || { failed=1; awk -F '\t' '{ printf "  %s: %s: bare %s, through us %s\n", $1, $2, $3, $4 }' <<<"$unexplained"; }
    done
  done
  return $failed
}
