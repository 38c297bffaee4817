#!/bin/bash
# run.sh [CRUN-CGROUP[,...]] [FILE.py...]
# Runs crun's own tests, of Debian's source package, as test/runc runs runc's: through gpuledger-runtime, on a node with GPUs and on one without an
# inventory, and bare what does not pass, compared test by test. CRUN-CGROUP: debian-v1, debian-v2 (default: both). Exit status 1 where a test's result is another one
# through us, and differences.txt does not explain it. crun's unit tests in C run no container, and are left out.
# Results: .cache/crun-suite/out/CRUN-CGROUP/NODE/FILE.tap. Root, Debian 12; some 3 minutes for all on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PATH:/usr/sbin:/sbin
# shellcheck disable=SC2034 # they are for suite.sh
name=crun known='debian-v[12]' here=$PWD/test/crun
. test/suite/suite.sh

# source_package: crun's source of the version that is installed, in $cache/VERSION, as Debian has it; and its tests in ruled, too, with a device
# rule in each spec. This machine's list of sources may name binary packages alone, and stays as it is.
source_package() {
  local version dir file lists=$work/apt
  # shellcheck disable=SC2016 # it is dpkg's
  version=$(dpkg-query -W -f '${source:Version}' crun)
  dir=$cache/$version
  [ ! -e "$dir/ruled" ] || { echo "$dir"; return; }
  say "getting the source of crun $version, once"
  mkdir -p "$lists"/{sources,lists/partial,cache/archives/partial} "$work/source"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -e "$file" ] || continue
    sed -E 's/^Types:.*/Types: deb-src/; s/^deb /deb-src /' "$file" >"$lists/sources/$(basename "$file")"
  done
  (
    options=(-q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$lists/sources" -o "Dir::State::lists=$lists/lists" -o "Dir::Cache=$lists/cache")
    cd "$work/source"
    apt-get "${options[@]}" update && apt-get "${options[@]}" source --download-only "crun=$version"
  ) >"$cache/source.log" 2>&1 || die "cannot get the source of crun $version: $(tail -n 1 "$cache/source.log")"
  mkdir "$work/source/crun"
  tar -C "$work/source/crun" --strip-components 1 -xf "$work"/source/crun_*.orig.tar.[gx]z
  cp -r "$work/source/crun/tests" "$work/source/crun/ruled"
  # crun's specs have no device rules, and so open each device of the node. Engines deny all first, and gpuledger refuses what does not.
  sed -i 's/^\( *\)conf = json.dumps(config)$/\1config["linux"].setdefault("resources", {}).setdefault("devices", [{"allow": False, "access": "rwm"}])\n&/' "$work/source/crun/ruled/tests_utils.py"
  grep -q setdefault "$work/source/crun/ruled/tests_utils.py" || die "cannot give the specs of crun's tests a device rule: tests_utils.py has changed"
  rm -rf "$dir" && mv "$work/source/crun" "$dir"
  echo "$dir"
}

# place: on a node without GPUs gpuledger passes such specs on, so the tests run there as they are. Bare they run as they did on the node.
# shellcheck disable=SC2154 # out is batch's
place() {
  real=$(command -v crun)
  case $out in
    */none | */none.try*) tests=$source/tests ;;
    *) tests=$source/ruled ;;
  esac
}

begin "${1:-debian-v1,debian-v2}"
[ $# = 0 ] || shift
source=$(source_package)
# The program that runs in the tests' containers; of crun's configuration it needs nothing.
: >"$work/config.h"
gcc -static -I "$work" -DHAVE_ERROR_H -o "$cache/init" "$source/tests/init.c"
# crun raises a limit before it sets device rules on cgroup v2. A root without CAP_SYS_RESOURCE cannot, and since 5.11 no kernel asks for it.
rm -f "$cache/limit.so"
if ! (ulimit -l unlimited) 2>/dev/null; then
  cat >"$work/limit.c" <<'LIMIT'
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit) {
  return resource == RLIMIT_MEMLOCK ? 0 : (int)syscall(SYS_prlimit64, 0, resource, limit, 0);
}
LIMIT
  gcc -shared -fPIC -D_GNU_SOURCE -o "$cache/limit.so" "$work/limit.c"
fi
export FILE_TIMEOUT=${FILE_TIMEOUT:-600} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
all "${@:-test_*.py}"
