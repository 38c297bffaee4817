#!/bin/bash
# private.sh COMMAND [ARG...]
# Runs a command with a /dev of its own. A mutant of the code that makes device nodes would otherwise
# make them on this machine.
set -euo pipefail
[ $# -gt 0 ] || { sed -n 2,4p "$0" >&2; exit 2; }

if [ "$1" != :inside ]; then
  dir=$(mktemp -d)
  trap 'rmdir "$dir"' EXIT
  unshare --mount --propagation private "$0" :inside "$dir" "$@"
  exit
fi

dir=$2
mount -t tmpfs tmpfs "$dir"
mkdir "$dir"/{changed,work,dev}
mount -t overlay -o "lowerdir=/dev,upperdir=$dir/changed,workdir=$dir/work" overlay "$dir/dev"
for mounted in /dev/*; do
  ! mountpoint -q "$mounted" || mount --rbind "$mounted" "$dir$mounted"
done
mount --rbind "$dir/dev" /dev
exec "${@:3}"
