# suite.sh: what run.sh of test/runc, test/crun, test/podman, test/crio and test/nvidia share: a runtime's or an engine's own tests run through
# gpuledger-runtime, on a node with GPUs and on one without an inventory. What does not pass runs bare, too, and is compared test by test. run.sh sets
#   name      the suite's
#   known     a regular expression of the cases that there are; batch takes the end of one, v1 or v2, for its cgroups' version
#   engine    the engine that calls the runtime, where one does and its identities count
#   here      its directory, with differences.txt and, where something is to be laid out in the namespaces, prepare.sh. A row of
#             differences.txt has five columns with tabs between: FILE, the test's name, NODE, its result through us, and why
# and declares
#   place CASE   sets tests, the directory of the test files, and real, the runtime; or a batch of its own
# Results: .cache/NAME-suite/out/CASE/NODE/FILE.tap.
# shellcheck shell=bash disable=SC2154 # they are run.sh's
repo=$PWD cache=$PWD/.cache/$name-suite suite=$PWD/test/suite
nodes=(inventory none)

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

# known_files DIR: every file of tests there is in files, which run.sh sets, or in left-out.txt, and in one of them alone.
known_files() {
  local differ
  differ=$(diff <(cd "$1" && printf '%s\n' *.bats | sort) <(
    { printf '%s.bats\n' "${files[@]}" && awk -F '\t' '/^[^#]/ { print $1 }' "$here/left-out.txt"; } | sort)) ||
    die "files of tests that are neither run nor in left-out.txt (<), or in both, or not there (>):" $'\n'"$differ"
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
# In $(...) bash does not end at an error by itself.
configure() {
  local said dir=$2
  [ "$1" != bare ] || { echo "$3"; return; }
  mkdir -m 700 "$dir/state" "$dir/run" || return
  [ -z "${engine:-}" ] || printf 'engine = "%s"\n' "$engine" >"$dir/config.toml"
  printf 'state_dir = "%s/state"\nrun_dir = "%s/run"\n[runtime]\npath = ["%s"]\n[audit]\nfile = "%s/audit.jsonl"\n' "$dir" "$dir" "$3" "$dir" >>"$dir/config.toml"
  if [ "$1" = inventory ]; then
    printf '[inventory]\nsource = "simulated"\nfile = "%s/gpus.json"\n' "$dir" >>"$dir/config.toml"
    said=$(bin/gpuledger inventory simulate --gpus 2 --memory 80GiB --out "$dir/gpus.json" 2>&1) || { echo "$said" >&2; return 1; }
    GPULEDGER_CONFIG=$dir/config.toml bin/gpuledger inventory refresh >/dev/null || return
  fi
  ln -s "$repo/bin/gpuledger-runtime" "$dir/$(basename "$3")" || return # some tests look for the name by which they call it
  echo "$dir/$(basename "$3")"
}

# batch CASE NODE OUT FILTER FILE...: runs test files, in namespaces and a cgroup of their own, and leaves nothing of it.
batch() {
  local case=$1 node=$2 out=$3 filter=$4 dir runtime status=0 tests real
  place "$case"
  dir=$(mktemp -d -p "$work") && chmod 755 "$dir" && mkdir -m 755 "$dir/bats"
  mkdir -p "$out"
  runtime=$(configure "$node" "$dir" "$real") || die "cannot lay out the node $node"
  RUNTIME=$runtime NODE=$node REFUSES=$suite/refuses.sh OUT=$out FILTER=$filter DIR=$dir TESTS=$tests CACHE=$cache PREPARE=$here/prepare.sh \
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

# compare BARE WRAPPED LIST: the tests of a list whose results differ, and its files that are not complete, as lines of FILE, name or nothing, and the
# two results.
compare() { awk -f "$suite/compare.awk" -v dir1="$1/" -v list="$3" "$1"/*.tap "$2"/*.tap; }

# unpassed WRAPPED: the tests that did not pass, and the files without all their results: FILE, name or nothing, and the result.
unpassed() { awk -f "$suite/compare.awk" -v unpassed=1 "$1"/*.tap; }

# refusals OUT: what messages beside the results, which do not say of which test they are, have of gpuledger's refusals. Bare has none.
refusals() {
  local file
  for file in "$1"/*.err; do
    [ ! -e "$file" ] || { grep -ao 'gpuledger: refused ([a-z-]*)' "$file" || true; } | sort -u |
      awk -v file="$(basename "${file%.err}")" '{ sub(/^gpuledger: /, ""); print file "\tits messages\tno refusal\t" $0 }'
  done
}

# cut_files OUT: the files that were ended before all their tests had a result.
cut_files() {
  local file
  for file in "$1"/*.cut; do
    [ ! -e "$file" ] || printf '  %s: ended after %s (FILE_TIMEOUT), before all its tests had a result\n' "$(basename "${file%.cut}")" "$(cat "$file")"
  done
}

count() { awk -f "$suite/compare.awk" -v count=1 "$1"/*.tap; }

# passes OUT NODE: how often a test passed, also when it ran again.
passes() { cat "$1"/*.tap "$1".try*/"$2"/*.tap 2>/dev/null | grep '^ok [0-9]' | grep -civ ' # \?skip' || true; }

# names FILE <LIST: the names of a file's tests in a list, as batch takes them; nothing is all of the file.
names() {
  awk -F '\t' -v file="$1" '
    $1 != file { next }
    $2 == "" { all = 1 }
    file ~ /\.py$/ { names = names sep $2; sep = " "; next }
    {
      number = ""
      if (match($2, / \([0-9]+\)$/)) { # of the tests of one name, or part of it
        number = "( \\" substr($2, RSTART + 1, RLENGTH - 2) "\\))?"
        $2 = substr($2, 1, RSTART - 1)
      }
      gsub(/[][\\.*^$+?(){}|\/]/, "\\\\&", $2)
      names = names sep "^" $2 number "$"; sep = "|"
    }
    END { if (!all) printf "%s", names }'
}

# settle CASE NODE: runs bare what did not pass, and then what differs again, bare and wrapped, until it is the same, has changed sides, or has
# differed three times: other processes of the machine disturb some of the tests, and some fail by chance. What is left is in NODE.differ, and the
# rest in NODE.varied.
settle() {
  local case=$1 node=$2 try file again runs=(bare) out=$cache/out/$1/$2 left=$cache/out/$1/$2.differ varied=$cache/out/$1/$2.varied
  local wrapped=$out
  unpassed "$out" >"$left"
  : >"$varied"
  for ((try = 1; try <= ${TRIES:-3}; try++)); do
    [ -s "$left" ] || break
    cut -f 1 "$left" | sort -u >"$left.files"
    while read -r file <&8; do
      for again in "${runs[@]}"; do # not at once: it may be that which disturbed it
        batch "$case" "$again" "$out.try$try/$again" "$(names "$file" <"$left")" "$file"
      done
    done 8<"$left.files"
    [ "$try" = 1 ] || wrapped=$out.try$try/$node
    compare "$out.try$try/bare" "$wrapped" "$left" >"$left.new"
    if [ "$try" = 1 ]; then
      mv "$left.new" "$left"
    else
      awk -F '\t' -v times=$((try - 1)) -v varied="$varied" '
        FILENAME == ARGV[1] { before[$1 FS $2] = $3 FS $4; order[++n] = $1 FS $2; next }
        $3 $4 ~ /^(passfail|failpass)$/ && before[$1 FS $2] == $4 FS $3 { next }
        { print; still[$1 FS $2] = 1 }
        END { for (i = 1; i <= n; i++) if (!(order[i] in still)) print order[i] FS before[order[i]] FS times >>varied }' \
        "$left" "$left.new" >"$left.kept"
      mv "$left.kept" "$left"
    fi
    runs=(bare "$node")
  done
  refusals "$out" >>"$left"
}

# rows: checks the form of differences.txt.
rows() {
  local wrong
  wrong=$(awk -F '\t' '/^#/ || !NF { next } NF != 5 || $2 == "" || $3 !~ /^([a-z]+-v[12]\/)?(inventory|none)$/ || $4 == "" || $5 == ""' "$here/differences.txt")
  [ -z "$wrong" ] || die "rows of differences.txt that have not FILE, name, inventory or none (of one case: CASE/inventory), the result through us, and a reason:" $'\n'"$wrong"
}

# unexplained CASE NODE: the lines of NODE.differ that differences.txt does not have with this result.
unexplained() {
  awk -F '\t' -v of="$1" -v node="$2" 'NR == FNR { if (!/^#/ && ($3 == node || $3 == of "/" node)) known[$1 FS $2 FS $4] = 1; next } $3 == "absent" || !($1 FS $2 FS $4 in known)' \
    "$here/differences.txt" "$cache/out/$1/$2.differ"
}

# is_skipped FILE.tap NAME: whether that test is skipped, as one for another version of cgroups is.
is_skipped() {
  NAME=$2 awk '/^ok / { sub(/^ok [0-9]+ (- )?/, ""); if (index($0, ENVIRON["NAME"] " # skip") == 1) found = 1 } END { exit !found }' "$1"
}

# unmet CASE NODE: the rows of differences.txt for files that ran on the node, and whose test was not skipped and does not differ so.
unmet() {
  local file name node result reason
  awk -F '\t' -v of="$1" -v node="$2" 'FILENAME == ARGV[1] { differs[$1 FS $2 FS $4] = 1; next } !/^#/ && ($3 == node || $3 == of "/" node) && !($1 FS $2 FS $4 in differs)' \
    "$cache/out/$1/$2.differ" "$here/differences.txt" |
    while IFS=$'\t' read -r file name node result reason; do
      [ ! -e "$cache/out/$1/$2/$file.tap" ] || is_skipped "$cache/out/$1/$2/$file.tap" "$name" ||
        echo "  $file: $name: not \"$result\" through us, or not through us alone, but differences.txt has it: $reason"
    done
}

# has_v1: whether the machine has cgroups of version 1 with which a runtime can close devices.
has_v1() { grep -q ' /sys/fs/cgroup/devices cgroup ' /proc/self/mounts; }

# ended CASE NODE: prints how the tests of a case ended on a node; fails where that is not as it must be.
ended() {
  local case=$1 node=$2 out=$cache/out/$1/$2 other wrong tests pass fail refused skip
  other=$(unexplained "$case" "$node") && read -r tests pass fail refused skip < <(count "$out") || die "cannot count the tests of $case ($node)"
  printf '%-10s %-10s %5s %5s %5s %7s %5s  %s\n' "$case" "$node" "$tests" "$pass" "$fail" "$refused" "$skip" \
    "$(wc -l <"$out.differ") ($(grep -c . <<<"$other" || true) unexplained)"
  awk -F '\t' '{ printf "  %s: %s: bare %s, through us %s; differed %d time%s, then not so\n", $1, $2 == "" ? "the whole file" : $2, $3, $4, $5, $5 == 1 ? "" : "s" }' "$out.varied"
  wrong=$(
    [ "$(passes "$out" "$node")" -gt 0 ] || echo "  no test passes"
    cut_files "$out"
    awk -F '\t' 'NF { printf "  %s: %s: bare %s, through us %s\n", $1, $2 == "" ? "a result for each test of its plan" : $2, $3, $4 }' <<<"$other"
    unmet "$case" "$node"
  )
  [ -z "$wrong" ] || { echo "$wrong"; return 1; }
}

# skipped CASE: why tests of the case were skipped, on any of the nodes.
skipped() {
  local node
  for node in "${nodes[@]}"; do
    awk -f "$suite/compare.awk" -v skips=1 "$cache/out/$1/$node"/*.tap
  done | awk '!seen[$0]++ { print "  skipped: " $0 }'
}

# all FILE...: runs the files for each of cases, prints how they end and fails where a difference is not explained.
all() {
  local case node batches ran=0 failed=0
  rows
  printf '%-10s %-10s %5s %5s %5s %7s %5s  %s\n' "$name" node tests pass fail refused skip 'differs from bare'
  for case in "${cases[@]}"; do
    if [ "${case##*-}" = v1 ] && ! has_v1; then
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
      settle "$case" "$node"
      ended "$case" "$node" || failed=1
    done
    skipped "$case"
    ran=1
  done
  [ "$ran" = 1 ] || die "no case ran"
  return $failed
}
