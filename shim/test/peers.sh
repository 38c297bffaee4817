#!/bin/bash
# peers.sh DIR: what make bench-peers measures libraries with, in DIR: the program peers, the proxies in proxy/, and two
# stand-in drivers. That in quick/ costs almost nothing, so that the cost of a library shows. That in counting/ counts
# what it gives, over all processes.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$1
mkdir -p "$dir/quick"
shim/build.sh "$dir/proxy"
test/fakedriver/build.sh "$dir/root"
counting=$(dirname "$(find "$dir/root" -name libcuda.so)")
ln -sfn "$(realpath "$counting")" "$dir/counting"
ln -sfn "$(realpath "$counting/libnvidia-ml.so.1")" "$dir/quick/libnvidia-ml.so.1"
cc -O2 -std=gnu11 -Wall -Wextra -shared -fPIC -fvisibility=hidden -pthread -Wl,-Bsymbolic -Wl,-soname,libcuda.so.1 \
  -o "$dir/quick/libcuda.so.1" shim/test/peers_driver.c test/fakedriver/shared.c
cc -O2 -std=gnu11 -Wall -Wextra -o "$dir/peers" shim/test/peers.c -ldl
