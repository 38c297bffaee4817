# prepare.sh: what crun's tests find where they run: the program of their containers, at the place where they look for it.
# shellcheck shell=bash disable=SC2154 # they are inside.sh's
install -D -m 755 "$CACHE/init" "$DIR/bats/tests/init"
[ ! -e "$CACHE/limit.so" ] || export LD_PRELOAD=$CACHE/limit.so
