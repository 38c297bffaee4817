#!/bin/bash
# halves.sh PACKAGE
# Runs a package's tests in two halves side by side. Most of these tests wait, and one after the other they leave a core idle.
# Each half runs as leftovers.sh runs a command, and in a network namespace of its own: neither sees what the other starts.
set -euo pipefail
[ $# = 1 ] || { sed -n 2,4p "$0" >&2; exit 2; }

rig=$(realpath "$(dirname "$0")")
work=$(mktemp -d "${TMPDIR:-/tmp}/gpuledger-halves-XXXXXX")
halves=()

# finish: ends what still runs, which is nothing where both halves ended by themselves.
finish() {
  local half
  for half in "${halves[@]}"; do
    kill -- "-$half" 2>/dev/null && wait "$half" || true
  done
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

go test -c -o "$work/tests" "$1"
cd "$1"
# Every second test, so that neighbours, which often take equally long, are shared out.
names=$("$work/tests" -test.list '^Test' | awk 'NR % 2' | paste -sd '|')
[ -n "$names" ] || { echo "halves.sh: $1 has no tests" >&2; exit 1; }
flags=(-test.timeout=45m) # a loaded machine with dear system calls needed 25
[[ " ${GOFLAGS:-} " != *' -v '* ]] || flags+=(-test.v)

# half NAME FLAG...: starts one, with its output in a file.
half() {
  setsid "$rig/leftovers.sh" unshare --net sh -c 'ip link set lo up && exec "$@"' sh "$work/tests" "${flags[@]}" "${@:2}" >"$work/$1" 2>&1 &
  halves+=($!)
}
half first "-test.run=^($names)\$"
half second "-test.skip=^($names)\$"

status=0
for name in first second; do
  said=ok
  wait "${halves[0]}" || said=FAIL status=1
  halves=("${halves[@]:1}")
  [ "$said" = ok ] && [ ${#flags[@]} = 1 ] || cat "$work/$name"
  echo "$said	the $name half of $1, after $SECONDS s"
done
exit "$status"
