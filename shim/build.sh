#!/bin/bash
# build.sh DIR: builds the proxy libraries in DIR: of libcuda, of libcuda with a throttle of launches, and of
# libnvidia-ml. CC and CFLAGS are obeyed, for another architecture or a sanitizer.
#
# A proxy needs the real library by its absolute path in the container, so it is linked with an empty library
# of that name. It also needs libdl by name: with glibc before 2.34, dlopen is there. -Bsymbolic binds a proxy's
# use of its own functions to itself, as the driver's is: a preloaded library that defines one does not get it.
set -euo pipefail
out=$1
src=$(dirname "$(readlink -f "$0")")
cc=${CC:-cc}
# Each entry point that allocates, frees or reports memory, launches, or finds functions has a row in the
# tables: it is wrapped, or passed on for a reason.
undecided=$(comm -23 <(tr -s ' ' '\n' <"$src/entry-points" | sort -u) <(sed -nE 's/^ *ROW\(([A-Za-z0-9_]+), .*/\1/p' "$src"/*_entries.h | sort -u))
[ -z "$undecided" ] || { echo "cannot build the shim: neither wrapped nor said to be passed on: ${undecided//$'\n'/, }; give each a row in shim/cuda_entries.h or shim/nvml_entries.h" >&2; exit 1; }
mkdir -p "$out"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
read -ra flags <<<"${CFLAGS:--O2 -g}"
flags+=(-std=gnu11 -Wall -Wextra -Wshadow -Werror -fPIC -fvisibility=hidden)

# proxy FILE SONAME REAL [-DNAME] SOURCE...
proxy() {
  local file=$1 name=$2 real=$3 define=()
  shift 3
  [[ $1 != -D* ]] || { define=("$1"); shift; }
  : | $cc -shared -nostdlib -Wl,-soname,"$real" -o "$tmp/real.so" -x c -
  $cc "${flags[@]}" "${define[@]}" -shared -o "$tmp/$file" "${@/#/$src/}" \
    -Wl,-soname,"$name" -Wl,--version-script,"$src/${name%.so.1}.map" -Wl,-z,now -Wl,-z,relro -Wl,-z,nodelete -Wl,-z,defs -Wl,-Bsymbolic \
    -Wl,--no-as-needed "$tmp/real.so" -l:libdl.so.2
  mv "$tmp/$file" "$out/$file" # a rename: never write to a file that a process has mapped
}
place() { sed -n "s|^#define $1 PLACE \"\(.*\)\"|/run/gpuledger/\1|p" "$src/place.h"; }
# The files that an allocation runs through come first: in other orders it takes up to 2 of 37 ns more.
libcuda=(cuda_driver.c cuda_devices.c cuda_count.c cuda_memory.c os.c account.c track.c sums.c
  cuda_pools.c cuda_left.c cuda_async.c cuda_virtual.c cuda_graphs.c cuda_reports.c cuda_resolve.c)
proxy libcuda.so.1 libcuda.so.1 "$(place PLACE_LIBCUDA)" "${libcuda[@]}"
proxy libcuda-throttle.so.1 libcuda.so.1 "$(place PLACE_LIBCUDA)" -DTHROTTLE "${libcuda[@]}" cuda_launch.c throttle.c
proxy libnvidia-ml.so.1 libnvidia-ml.so.1 "$(place PLACE_LIBNVML)" nvml.c account.c sums.c os.c
