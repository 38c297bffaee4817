#!/bin/bash
# build.sh DIR: the stand-in driver as a driver root in DIR, laid out as Debian lays out NVIDIA's.
# It uses CC, CFLAGS and FAKEDRIVER_VERSION: from 615 on its NVML limits the memory of cgroups.
# DIR/run/fakedriver/devices lists its GPUs; change it as you like.
set -euo pipefail
root=$1
src=$(dirname "$(readlink -f "$0")")
version=${FAKEDRIVER_VERSION:-580.65.06}
cc=${CC:-cc}
triplet=$($cc -dumpmachine | sed 's/-pc-/-/; s/-unknown-/-/')
lib=$root/usr/lib/$triplet
read -ra flags <<<"${CFLAGS:--O2 -g}"
flags+=(-std=gnu11 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -pthread "-DFAKEDRIVER_VERSION=\"$version\"")
[ "${version%%.*}" -lt 615 ] || flags+=(-DFAKEDRIVER_LIMITS)

mkdir -p "$lib" "$root/usr/bin" "$root/run/fakedriver"
# library NAME SOURCE...: as the vendor links them: its own calls are bound to itself.
library() {
  local name=$1
  shift
  rm -f "$lib/$name.so.$version"
  $cc "${flags[@]}" -shared -Wl,-Bsymbolic -Wl,-soname,"$name.so.1" -Wl,-z,defs -o "$lib/$name.so.$version" "${@/#/$src/}" -ldl
  ln -sfn "$name.so.$version" "$lib/$name.so.1"
  ln -sfn "$name.so.1" "$lib/$name.so"
}
library libcuda cuda.c objects.c virtual.c pools.c graphs.c launches.c resolve.c shared.c
library libnvidia-ml nvml.c shared.c
$cc "${flags[@]}" -o "$root/usr/bin/nvidia-smi" "$src/smi.c" -ldl
[ -e "$root/run/fakedriver/devices" ] || cat >"$root/run/fakedriver/devices" <<'DEVICES'
GPU-00000000-fa4e-d41e-0000-000000000001 16384 Stand-in GPU
GPU-00000000-fa4e-d41e-0000-000000000002 16384 Stand-in GPU
context 256
DEVICES
