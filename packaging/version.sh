#!/bin/bash
# packaging/version.sh: prints the version of this tree, as packages have it. v1.2.3 is 1.2.3; five
# commits later it is 1.2.3+5.gabcdef. v1.2.3-rc.1 is 1.2.3~rc.1, which is older than 1.2.3. Before
# the first tag it is 0.0.0+<time of the commit>.gabcdef. The version of an uncommitted tree shows
# that.
set -euo pipefail
cd "$(dirname "$0")/.."
git() { command git -c safe.directory="$PWD" "$@"; }
if v=$(git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null); then
  sed -E 's/^v//; s/-dirty$/.dirty/; s/-([0-9]+)-(g[0-9a-f]+)/+\1.\2/; s/-(alpha|beta|rc)/~\1/' <<<"$v"
else
  v=$(git describe --always --match=NoSuchTag --dirty)
  echo "0.0.0+$(date -u -d "@$(git log -1 --format=%ct)" +%Y%m%d%H%M%S).g${v/-dirty/.dirty}"
fi
