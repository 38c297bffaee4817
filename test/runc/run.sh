#!/bin/bash
# run.sh [RUNC-CGROUP[,...]] [FILE.bats...]
# Runs runc's own integration tests through gpuledger-runtime, on a node with GPUs and on one without an inventory; bare what does not pass, and
# compares test by test. RUNC-CGROUP: newest-v1, newest-v2, debian-v1, debian-v2 (default: all). Exit status 1 where a test's result is another one through
# us, and differences.txt does not explain it.
# Results: .cache/runc-suite/out/RUNC-CGROUP/NODE/FILE.tap. Root, Debian 12; some 20 minutes for all on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin
# shellcheck disable=SC2034 # they are for suite.sh
name=runc known='(newest|debian)-v[12]' here=$PWD/test/runc
. test/suite/suite.sh

# images: root file systems of what this machine and Debian's mirror have; runc's own would come from the network at each test.
images() {
  local root
  if [ ! -e "$cache/busybox.tar" ]; then
    root=$(mktemp -d) && chmod 755 "$root"
    busybox_root "$root"
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

# module ENGINE: runc's tests as its Go module has them, with their helpers, in a directory that they can write to.
module() {
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

# place CASE: which runc, and its own tests.
place() {
  case ${1%-*} in
    newest) tests=$cache/runc-suite/tests/integration real=$repo/.cache/engines/runc/runc ;;
    debian) tests=$cache/runc-suite-1.1/tests/integration real=$(command -v runc) ;;
  esac
}

begin "${1:-newest-v1,newest-v2,debian-v1,debian-v2}"
[ $# = 0 ] || shift
test/engines/build.sh runc runc-suite runc-suite-1.1
images
module runc-suite
module runc-suite-1.1
all "${@:-*.bats}"
