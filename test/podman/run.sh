#!/bin/bash
# run.sh [RUNTIME-CGROUP[,...]] [FILE.bats...]
# Runs Podman's own system tests, those that start containers, as test/runc runs runc's: through gpuledger-runtime, on a node with GPUs and on
# one without an inventory, and with the bare runtime what does not pass, compared test by test. RUNTIME-CGROUP: crun-v1, runc-v1, crun-v2, runc-v2 (default: crun-v1).
# Exit status 1 where a test's result is another one through us, and differences.txt does not explain it. Podman is Debian's, and the tests are of
# its version. Their image is made here of busybox; what pulls another one fails, bare as through us.
# left-out.txt has the files that do not run, each with its reason.
# Results: .cache/podman-suite/out/RUNTIME-CGROUP/NODE/FILE.tap. Root, Debian 12.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin
# shellcheck disable=SC2034 # they are for suite.sh
name=podman known='(crun|runc)-v[12]' here=$PWD/test/podman
. test/suite/suite.sh

# What runs unless files are named: all but those of left-out.txt.
files=(030-run 032-sig-proxy 040-ps 045-start 050-stop 055-rm 060-mount 065-cp 075-exec 080-pause 125-import 130-kill 140-diff 160-volumes
  190-run-ipcns 280-update 400-unprivileged-access 420-cgroups)

# module: the tests of the version that is installed, as Podman's Go module has them.
module() {
  local version source
  version=$(podman --version | awk '{ print $3 }')
  source=$(cd "$work" && go mod download -json "github.com/containers/podman/v${version%%.*}@v$version" | jq -r .Dir) ||
    die "cannot get the tests of Podman $version"
  rm -rf "$cache/test" && mkdir -p "$cache/test"
  cp -r "$source/test/system" "$cache/test/"
  chmod -R u+w "$cache/test"
  # This test takes eight seconds of a build for long enough, which other work of the machine can make wrong.
  sed -i '/^@test "podman ps --external" {$/a skip "fails by chance"' "$cache/test/system/040-ps.bats"
}

# image: what Podman's tests expect of theirs: testimage-id with its own time, and a pause.
image() {
  local root
  root=$(mktemp -d -p "$work") && chmod 755 "$root"
  busybox_root "$root"
  mkdir -p "$root/home/podman" "$root/srv"
  : >"$root/etc/services" # a test removes it
  ln -s ../proc/mounts "$root/etc/mtab"
  printf '#!/bin/sh\nexec env\n' >"$root/bin/printenv" && chmod 755 "$root/bin/printenv"
  echo 20220615 >"$root/home/podman/testimage-id"
  touch --date=@1600000000 "$root/home/podman/testimage-id"
  # shellcheck disable=SC2016 # it is the image's
  printf '#!/bin/sh\necho Confirmed: testimage pause invoked as $0\nwhile :; do sleep 0.1; done\n' >"$root/home/podman/pause"
  chmod 755 "$root/home/podman/pause"
  tar -C "$root" -cf "$cache/testimage.tar" .
}

place() { tests=$cache/test/system real=$cache/runtime/${1%-*}; }

begin "${1:-crun-v1}"
[ $# = 0 ] || shift
module
known_files "$cache/test/system"
image
mkdir -p "$cache/runtime"
for runtime in crun runc; do # copies: the tests find the runtime that they get, ours or this, at its usual place
  install -m 755 "$(command -v $runtime)" "$cache/runtime/$runtime"
done
export BATS_TEST_TIMEOUT=240 # of one test, in seconds; some of 065-cp call podman dozens of times
[ $# -gt 0 ] || set -- "${files[@]/%/.bats}"
all "$@"
