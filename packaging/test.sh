#!/bin/bash
# packaging/test.sh [DIRECTORY]: tests the packages in DIRECTORY; without one it builds them twice, compares, and tests those.
# A Debian 12 is made by debootstrap in a mount namespace of its own, and removed again.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C

if [ -z "${GPULEDGER_TEST_PRIVATE:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "packaging/test.sh: it takes root" >&2; exit 1; }
  GPULEDGER_TEST_PRIVATE=1 exec unshare --mount --propagation private "packaging/test.sh" "$@"
fi

work=$(mktemp -d)
clean() {
  mountpoint -q "$work/root/proc" && umount -l "$work/root/proc"
  rm -rf --one-file-system "$work"
}
trap clean EXIT

step() { echo "== $*"; }
fail() { echo "FAIL: $*" >&2; exit 1; }
in_root() { chroot "$work/root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
# everything below the root, with modes, owners, links and contents, but for what dpkg and rpm write about themselves
listing() { (cd "$work/root" && find . -xdev \( -path ./proc -o -path ./packages -o -path ./var/lib/dpkg -o -path ./var/lib/rpm -o -path ./var/log/dpkg.log \) -prune -o ! -type d -printf '%p %m %u %l %s\n' -o -type d -printf '%p/ %m %u\n' | sort); }
same() { diff -u "$work/before" <(listing) || fail "$1 leaves something behind, or took something away"; }

dist=${1:-}
if [ -z "$dist" ]; then
  step "two builds, from two places, give the same bytes"
  packaging/build.sh dist
  mkdir "$work/elsewhere"
  tar -c --exclude=./bin --exclude=./dist --exclude=./.cache . | tar -xC "$work/elsewhere"
  "$work/elsewhere/packaging/build.sh" "$work/again"
  diff -r dist "$work/again" || fail "the builds differ"
  dist=dist
fi
(cd "$dist" && sha256sum --quiet -c SHA256SUMS)

native=$(dpkg --print-architecture)
deb=$(ls "$dist"/gpuledger_*_"$native".deb)

step "the programs: static but for gpuledger, which looks NVML's functions up when it calls them"
for arch in amd64 arm64; do
  dpkg-deb -x "$dist"/gpuledger_*_"$arch".deb "$work/$arch"
  for name in gpuledger-runtime gpuledger-hook gpuledgerd; do
    readelf -dW "$work/$arch/usr/bin/$name" | grep -q NEEDED && fail "$arch $name is not static"
  done
  [ "$(readelf -dW "$work/$arch/usr/bin/gpuledger" | grep NEEDED)" = "$(readelf -dW "$work/$arch/usr/bin/gpuledger" | grep 'NEEDED.*libc.so.6')" ] || fail "$arch gpuledger needs more than libc"
  readelf -dW "$work/$arch/usr/bin/gpuledger" | grep -q 'BIND_NOW\|FLAGS.*NOW' && fail "$arch gpuledger is bound at the start: NVML's functions would have to be there"
  newest=$(readelf -VW "$work/$arch/usr/bin/gpuledger" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
  [ "$(printf '%s\nGLIBC_2.34\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.34 ] || fail "$arch gpuledger needs $newest, and the packages say GLIBC_2.34"
done

step "debootstrap"
debootstrap --variant=minbase bookworm "$work/root" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; fail "debootstrap"; }
mount -t proc proc "$work/root/proc"
mkdir "$work/root/packages"
cp "$deb" "$work/root/packages/new.deb"
# The version before: another number, and another default configuration.
dpkg-deb -R "$deb" "$work/old"
sed -i 's/^Version: .*/Version: 0.0.0+0-1/' "$work/old/DEBIAN/control"
echo '# as it was' >>"$work/old/etc/gpuledger/config.toml"
dpkg-deb --root-owner-group -b "$work/old" "$work/root/packages/old.deb" >/dev/null
listing >"$work/before"

step "install: files, modes, programs that run, nothing that was started"
in_root dpkg -i /packages/old.deb >/dev/null
(cd "$work/root" && find etc/gpuledger usr/bin/gpuledger* -perm /022 ! -type l | grep .) && fail "others can write to these"
in_root gpuledger --version
in_root sh -c 'ln -s /bin/true /usr/bin/runc && gpuledger-runtime.containerd --version >/dev/null && rm /usr/bin/runc'
[ "$(in_root gpuledger grants --json | tr -d ' \n')" = '{"grants":[]}' ] || fail "the ledger of a new node is empty"
in_root sh -c 'gpuledger doctor 2>/dev/null | grep "^ok       configuration"' >/dev/null || fail "the packaged configuration is not in force"

step "upgrade: a changed configuration stays"
echo '# mine' >>"$work/root/etc/gpuledger/config.toml"
in_root dpkg -i --force-confdef --force-confold /packages/new.deb >/dev/null
tail -n 1 "$work/root/etc/gpuledger/config.toml" | grep -qx '# mine' || fail "the administrator's configuration is gone"
rm -f "$work"/root/etc/gpuledger/config.toml.dpkg-*

step "removal waits until no engine needs it, and an upgrade does not"
mkdir -p "$work/root/etc/docker"
in_root gpuledger configure docker >/dev/null
in_root dpkg -r gpuledger >"$work/log" 2>&1 && fail "it was removed under an engine"
grep -q 'hint: gpuledger configure docker --undo --restart' "$work/log" || fail "it does not say what to do"
in_root dpkg -i /packages/new.deb >/dev/null
in_root gpuledger configure docker --undo >/dev/null
rmdir "$work/root/etc/docker"

step "remove keeps the ledger and the configuration, purge leaves nothing"
mkdir -p "$work/root/var/log/gpuledger"
in_root dpkg -r gpuledger >/dev/null
[ -e "$work/root/etc/gpuledger/config.toml" ] && [ -d "$work/root/var/lib/gpuledger" ] || fail "a removal is no purge"
in_root dpkg -i /packages/new.deb >/dev/null
in_root dpkg -P gpuledger >/dev/null
same purge

step "rpm: install, refuse, erase"
case $native in amd64) rpm=$(ls "$dist"/*.x86_64.rpm) ;; arm64) rpm=$(ls "$dist"/*.aarch64.rpm) ;; esac
rpm=$(realpath "$rpm")
rpms() { rpm --root "$work/root" --dbpath /var/lib/rpm --force-debian "$@"; } # Debian's rpm warns without
# What every system with rpm has: their owners are other packages there.
mkdir -p "$work/root/usr/share/fish/vendor_completions.d" "$work/root/usr/share/zsh"
listing >"$work/before"
rpms -i --nodeps "$rpm"
rpms -V --nodeps gpuledger || fail "rpm finds its files changed"
in_root gpuledger --version
mkdir -p "$work/root/var/lib/gpuledger/configure/crio"
touch "$work/root/var/lib/gpuledger/configure/crio/record.json"
rpms -e gpuledger 2>"$work/log" && fail "it was erased under an engine"
grep -q 'gpuledger configure crio --undo' "$work/log" || fail "it does not say what to do"
rm -r "$work/root/var/lib/gpuledger"
rpms -e gpuledger
rm -rf "$work/root/var/lib/rpm"
same "rpm -e"

step "units, where systemd-analyze is there"
if command -v systemd-analyze >/dev/null; then
  mkdir "$work/units"
  for unit in "$work/$native"/usr/lib/systemd/system/gpuledger*; do
    sed '/^Documentation=/d; s|/usr/bin/gpuledger|'"$work/$native"'/usr/bin/gpuledger|' "$unit" >"$work/units/${unit##*/}"
  done
  SYSTEMD_UNIT_PATH="$work/units:" systemd-analyze verify "$work"/units/* 2>&1 | tee "$work/log"
  ! grep -q gpuledger "$work/log" || fail "systemd-analyze verify"
  systemd-analyze security --offline=true --threshold=40 "$work/units/gpuledgerd.service" | tail -n 1
else
  echo "SKIP: no systemd-analyze: the units are not verified"
fi
echo ok
