#!/bin/bash
# build.sh OUT FAKEDRIVER: builds the test programs in OUT. CFLAGS are obeyed. They are linked with the stand-in
# driver and find the proxies by their names.
set -euo pipefail
out=$1 fake=$2
src=$(dirname "$(readlink -f "$0")")
cc=${CC:-cc}
read -ra flags <<<"${CFLAGS:--O1 -g}"
flags+=(-std=gnu11 -Wall -Wextra -Werror -Wno-unused-function -pthread)
lib=$(dirname "$(find "$fake" -name libcuda.so)")
mkdir -p "$out"
# The proxy does not define what it does not wrap, so the programs are linked with the driver.
link=(-L"$lib" "-Wl,--allow-shlib-undefined" -lcuda -ldl)
$cc "${flags[@]}" -o "$out/account_test" "$src"/{account_test.c,../account.c,../sums.c,../track.c,../os.c} -ldl
$cc "${flags[@]}" -DOS_TICKS_OF_TEST -o "$out/throttle_test" "$src"/{throttle_test.c,../throttle.c}
$cc "${flags[@]}" -rdynamic -o "$out/proxy_test" "$src"/proxy_*.c "${link[@]}"
$cc "${flags[@]}" -o "$out/storm" "$src/storm.c" "${link[@]}"
$cc "${flags[@]}" -o "$out/client" "$src/client.c" -ldl
$cc "${flags[@]}" -DLINKED -o "$out/client-linked" "$src/client.c" "${link[@]}"
$cc "${flags[@]}" -o "$out/nvml_test" "$src/nvml_test.c" -L"$lib" -lnvidia-ml -ldl
$cc "${flags[@]}" -o "$out/entries" "$src/entries.c"
$cc "${flags[@]}" -o "$out/records" "$src/records.c"
$cc -O1 -std=gnu11 -Wall -Wextra -Werror -shared -fPIC -o "$out/tracer.so" "$src/tracer.c" -ldl
echo 'void when_loaded(void); __attribute__((constructor)) static void begin(void) { when_loaded(); }' |
  $cc -O1 -shared -fPIC -o "$out/constructor.so" -x c -
# A driver that lacks calls. It is not under test, so it is never sanitized.
mkdir -p "$out/older"
$cc -O1 -std=gnu11 -shared -Wl,-Bsymbolic -fPIC -fvisibility=hidden -Wl,-soname,libcuda.so.1 -o "$out/older/libcuda.so.1" "$src/older_driver.c"
$cc -O1 -std=gnu11 -shared -Wl,-Bsymbolic -fPIC -fvisibility=hidden -DNVML -Wl,-soname,libnvidia-ml.so.1 -o "$out/older/libnvidia-ml.so.1" "$src/older_driver.c"
# A static program contains the C library's dlopen. Sanitizers cannot be linked statically.
[[ " ${flags[*]} " == *" -fsanitize="* ]] ||
  $cc "${flags[@]}" -DSTATIC -static -o "$out/client-static" "$src/client.c" 2> >(grep -v 'statically linked applications\|in function' >&2)
