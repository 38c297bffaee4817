#!/bin/bash
# run.sh
# Runs the tests of nvidia-container-runtime that test it as a program: those of cmd/nvidia-container-runtime of the version that
# test/tools/nvidia-container-toolkit pins. They find the runtime in PATH: gpuledger-runtime in the place of NVIDIA's own, on a node with GPUs and on
# one without an inventory, and then NVIDIA's own, compared test by test. Not a line of them is changed. Exit status 1 where a test's result is
# another one through us and differences.txt does not explain it, where one does not pass with NVIDIA's, or where the low-level runtime is called in
# another way. docs/suites.md has the other tests.
# The module lacks its tests' input: here runc writes the spec, and a stand-in for runc writes down its calls. No container is started.
# Results: .cache/nvidia-suite/out/VERSION/NODE/main_test.tap and .calls. Root, Debian 12.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin
# shellcheck disable=SC2034 # they are for suite.sh
name=nvidia known='[0-9.]+' here=$PWD/test/nvidia
. test/suite/suite.sh

pinned() { awk -v module="$module" '$1 == module { print $2 }' test/tools/nvidia-container-toolkit/go.mod; }

# module: a copy of NVIDIA's module with what its tests look for, and the tests as a program.
module() {
  local source
  source=$(go -C test/tools/nvidia-container-toolkit mod download -json "$module" | jq -r .Dir) || die "cannot get $module"
  rm -rf "$cache/module" && cp -r "$source" "$cache/module" && chmod -R u+w "$cache/module"
  (
    cd "$cache/module"
    mkdir -p tests/bin tests/input tests/output
    cd tests/input && runc spec && mv config.json test_spec.json
    # shellcheck disable=SC2016 # it is the stand-in's
    printf '#!/bin/sh\nprintf "%%s\\n" "$*" >>"$CALLS"\n' >../bin/runc
    printf '#!/bin/sh\n' >../bin/nvidia-container-runtime-hook
    chmod 755 ../bin/*
  )
  go -C "$cache/module" test -c -p 2 -o "$cache/wrapper.test" ./cmd/nvidia-container-runtime || die "cannot build the tests of $module"
}

# batch VERSION NODE OUT FILTER FILE: runs the tests, with a directory of their own for what they find. FILTER is a regular expression. The plan is
# what the program lists before, so that tests that are lost with it are missing.
batch() {
  local node=$2 out=$3 dir program
  dir=$(mktemp -d -p "$work") && mkdir -p "$out" && cp -r "$cache/module/tests" "$dir/tests"
  program=$(configure "$node" "$dir" runc) || die "cannot lay out the node $node"
  if [ "$node" = bare ]; then
    program=$repo/bin/peers/nvidia-container-runtime
  else
    PATH=$dir/tests/bin:$PATH CALLS=/dev/null GPULEDGER_CONFIG=$dir/config.toml "$suite/refuses.sh" "$program" "$node" || die "gpuledger is not in NVIDIA's place ($node)"
  fi
  ln -s "$program" "$dir/tests/bin/nvidia-container-runtime"
  # shellcheck disable=SC2016 # they are the inner shell's
  CALLS=$out/main_test.calls LIST=$out/main_test.list GPULEDGER_CONFIG=$dir/config.toml TESTS=$dir/tests MODULE=$cache/module FILTER=$4 nice unshare --mount --propagation private sh -c '
    : >"$CALLS" && mount --bind "$TESTS" "$MODULE/tests" && cd "$MODULE/cmd/nvidia-container-runtime" || exit
    ../../../wrapper.test -test.list "${FILTER:-.}" >"$LIST" && exec ../../../wrapper.test -test.v ${FILTER:+-test.run "$FILTER"}
    ' >"$out/main_test.log" 2>&1 || true
  [ -s "$out/main_test.list" ] || { tail -n 5 "$out/main_test.log" >&2; die "no test of NVIDIA's ran ($node)"; }
  {
    echo "1..$(grep -c '^Test' "$out/main_test.list")"
    awk '/^--- (PASS|FAIL|SKIP): / { print ($2 == "FAIL:" ? "not ok " : "ok ") ++n " - " $3 ($2 == "SKIP:" ? " # skip" : "") }' "$out/main_test.log"
  } >"$out/main_test.tap"
  rm -rf --one-file-system "$dir"
}

module=github.com/NVIDIA/nvidia-container-toolkit
version=$(pinned)
begin "${version#v}"
[ -x bin/peers/nvidia-container-runtime ] || die "bin/peers/nvidia-container-runtime is not there; run make peers first"
module
all main_test
out=$cache/out/${version#v}
batch "${version#v}" bare "$out/bare" '' main_test
read -r tests pass _ < <(count "$out/bare")
{ [ -z "$(unpassed "$out/bare")" ] && [ "$pass" = "$tests" ]; } || die "not every test passes with NVIDIA's own program: $pass of $tests"
[ -s "$out/bare/main_test.calls" ] || die "NVIDIA's own program calls no runtime"
for node in inventory none; do
  diff "$out"/{bare,$node}/main_test.calls >&2 || die "runc is called in another way through us ($node)"
done
