#!/bin/bash
# build.sh ARCH FILE: builds the front for amd64 or arm64 as a source file of Go's assembler, which
# has the machine code and a jump to Go's own entry behind it. CC is obeyed, for another architecture.
set -euo pipefail
arch=$1 out=$2
src=$(dirname "$(readlink -f "$0")")
cc=${CC:-cc}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
flags=(-std=gnu11 -Os -Wall -Wextra -Wshadow -Werror -ffreestanding -fno-builtin -fPIE -fvisibility=hidden
  -fno-stack-protector -fno-asynchronous-unwind-tables -fno-jump-tables -mgeneral-regs-only)
case $arch in
  amd64) flags+=(-fcf-protection=none) word='BYTE $0x' bytes=1 ;;
  arm64) flags+=(-mcmodel=tiny -mno-outline-atomics) word='WORD $0x' bytes=4 ;;
  *) echo "cannot build the front for $arch: it has the system calls of amd64 and arm64" >&2; exit 1 ;;
esac
$cc "${flags[@]}" -c -o "$tmp/front.o" "$src/front.c"
# -z defs: it calls nothing of a libc
$cc -nostdlib -static -no-pie -Wl,-z,defs -Wl,--build-id=none -Wl,-T,"$src/front.ld" -o "$tmp/front.elf" "$tmp/front.o"
"$($cc -print-prog-name=objcopy)" -O binary -j .front "$tmp/front.elf" "$tmp/front"
{
  echo "// Made by front/build.sh of front/front.c."
  echo
  echo "//go:build front"
  echo
  echo '#include "textflag.h"'
  echo
  echo 'TEXT gpuledger_front(SB), NOSPLIT|NOFRAME|TOPFRAME, $0'
  od -An -v -w"$bytes" -tx"$bytes" "$tmp/front" | tr -d ' ' | sed "s/^/	$word/"
  echo "	JMP _rt0_${arch}_linux(SB)"
} >"$tmp/front.s"
cmp -s "$tmp/front.s" "$out" || { cp "$tmp/front.s" "$out.$$" && mv "$out.$$" "$out"; } # others may build with it
echo "front: $(stat -c %s "$tmp/front") bytes for $arch"
