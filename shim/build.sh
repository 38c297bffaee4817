#!/bin/bash
# build.sh DIR: the proxy libraries in DIR: of libcuda, of libcuda with a throttle of launches, and of libnvidia-ml. CC and CFLAGS are obeyed,
# so that another architecture or a sanitizer can be had.
#
# What is needed is the real library's absolute path in the container, so a stand-in with that name is linked against.
# An old glibc must do: libdl is needed by name, because before 2.34 dlopen is there.
set -euo pipefail
out=$1
src=$(dirname "$(readlink -f "$0")")
cc=${CC:-cc}
# Whatever obtains, frees or reports memory, launches, or finds functions, has a row in the tables: wrapped, or passed on beside the reason why.
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
    -Wl,-soname,"$name" -Wl,--version-script,"$src/${name%.so.1}.map" -Wl,-z,now -Wl,-z,relro -Wl,-z,nodelete -Wl,-z,defs \
    -Wl,--no-as-needed "$tmp/real.so" -l:libdl.so.2
  mv "$tmp/$file" "$out/$file" # never into a file that somebody has mapped
}
place() { sed -n "s|^#define $1 PLACE \"\(.*\)\"|/run/gpuledger/\1|p" "$src/place.h"; }
libcuda=(cuda.c cuda_memory.c cuda_virtual.c cuda_pools.c cuda_graphs.c track.c account.c os.c)
proxy libcuda.so.1 libcuda.so.1 "$(place PLACE_LIBCUDA)" "${libcuda[@]}"
proxy libcuda-throttle.so.1 libcuda.so.1 "$(place PLACE_LIBCUDA)" -DTHROTTLE "${libcuda[@]}" cuda_launch.c throttle.c
proxy libnvidia-ml.so.1 libnvidia-ml.so.1 "$(place PLACE_LIBNVML)" nvml.c account.c os.c
