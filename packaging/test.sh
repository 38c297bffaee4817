#!/bin/bash
# packaging/test.sh [DIRECTORY]: tests the packages in DIRECTORY; without one it builds them twice, compares, and tests those.
# A Debian 12 is made by debootstrap in mount and pid namespaces of their own, and removed again: however this ends, every
# container and service that it has started ends with it.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin LC_ALL=C

if [ -z "${GPULEDGER_TEST_PRIVATE:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "packaging/test.sh: it takes root" >&2; exit 1; }
  GPULEDGER_TEST_PRIVATE=1 exec unshare --mount --pid --fork --kill-child --mount-proc --propagation private "packaging/test.sh" "$@"
fi

work=$(mktemp -d)
root=$work/root
group=gpuledger-packages-${work##*.}
clean() {
  local i dir
  in_root sh -c 'command -v gpuledger-runtime >/dev/null && gpuledger-runtime --root /run/test delete --force one' >/dev/null 2>&1 || true
  for dir in /sys/fs/cgroup/"$group" /sys/fs/cgroup/*/"$group"; do
    for ((i = 0; i < 100; i++)); do # a cgroup stays busy for a moment after its last process
      [ -d "$dir" ] || break
      find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
  done
  ! mountpoint -q "$root" || umount -R "$root" 2>/dev/null || umount -R -l "$root"
  rm -rf --one-file-system "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM HUP

step() { echo "== $*"; }
fail() { echo "FAIL: $*" >&2; exit 1; }
# No chroot: what a runtime starts in a container joins its mount namespace, and would find itself at the machine's root.
in_root() { nsenter --target "$holder" --mount --wd /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
# everything below the root, with modes, owners, links and contents, but for what dpkg and rpm write about themselves
listing() { (cd "$root" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./packages -o -path ./var/lib/dpkg -o -path ./var/lib/rpm -o -path ./var/log/dpkg.log \) -prune -o ! -type d -printf '%p %m %u %l %s\n' -o -type d -printf '%p/ %m %u\n' | sort); }
same() { diff -u "$work/before" <(listing) || fail "$1 leaves something behind, or took something away"; }

dist=${1:-}
if [ -z "$dist" ]; then
  step "two builds, from two places, give the same bytes"
  packaging/build.sh dist
  mkdir "$work/elsewhere"
  tar -c --exclude=./bin --exclude=./dist --exclude=./.cache . | tar -xC "$work/elsewhere"
  "$work/elsewhere/packaging/build.sh" "$work/again" >/dev/null
  diff -r dist "$work/again" || fail "the builds differ"
  rm -rf "$work/elsewhere" "$work/again"
  dist=dist
fi
(cd "$dist" && sha256sum --quiet -c SHA256SUMS)

native=$(dpkg --print-architecture)
deb=$(ls "$dist"/gpuledger_*_"$native".deb)
version=$(dpkg-deb -f "$deb" Version | sed 's/-1$//')
case $native in amd64) rpm=$(ls "$dist"/*.x86_64.rpm) ;; arm64) rpm=$(ls "$dist"/*.aarch64.rpm) ;; esac

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
  for library in libcuda.so.1 libnvidia-ml.so.1; do
    [ "$(stat -c '%a %u' "$work/$arch/usr/lib/gpuledger/shim-$version/$library")" = "644 0" ] || fail "$arch: the shim's $library is not in a directory of its version"
  done
done

step "the bill of materials names every module of every program, and every file with its sum"
for arch in amd64 arm64; do
  bom=$(ls "$dist"/gpuledger_*_"$arch".cdx.json)
  for program in "$work/$arch"/usr/bin/gpuledger*; do
    [ ! -L "$program" ] || continue
    while read -r module release; do
      jq -e --arg url "pkg:golang/$module@$release" 'any(.components[]; .purl == $url)' "$bom" >/dev/null || fail "$bom: no $module $release of ${program##*/}"
    done < <(go version -m "$program" | awk '$1 == "dep" { print $2, $3 }')
  done
  jq -r '.components[] | select(.type == "file") | .hashes[0].content + "  " + (.name | ltrimstr("/"))' "$bom" >"$work/sums"
  [ "$(wc -l <"$work/sums")" -gt 20 ] || fail "$bom names hardly a file"
  (cd "$work/$arch" && sha256sum --quiet -c "$work/sums") || fail "$bom is of other files"
done

step "the Kubernetes manifests, read as strictly as an API server does"
go -C packaging/tools/manifests run . "$PWD"/packaging/kubernetes/*.yaml

step "lintian and rpmlint: every tag is explained in packaging/lintian-overrides and packaging/rpmlint.toml"
lintian --fail-on error,warning --tag-display-limit 0 --suppress-tags initial-upload-closes-no-bugs --allow-root "$deb" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail lintian; }
rpmlint --config packaging/rpmlint.toml "$rpm" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail rpmlint; }
grep -q ' 0 errors, 0 warnings' "$work/log" || { cat "$work/log" >&2; fail "rpmlint has something to say"; }

step "debootstrap"
debootstrap --variant=minbase bookworm "$root" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; fail "debootstrap"; }
mount --bind "$root" "$root" # a runtime's pivot_root asks for a mount point above it
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mkdir -p "$root/packages/machine"
unshare --mount --propagation private sh -c 'cd "$1" && pivot_root . packages/machine && umount -l /packages/machine && touch /packages/ready && exec sleep infinity' - "$root" &
holder=$!
for ((i = 0; i < 600; i++)); do
  [ ! -e "$root/packages/ready" ] || break
  sleep 0.1
done
[ -e "$root/packages/ready" ] || fail "cannot go to the new root"
# debootstrap cannot order what Podman needs; apt can. Nothing may start its service.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
in_root apt-get -q install -y --no-install-recommends runc busybox-static systemd systemd-sysv dbus containerd podman >"$work/log" 2>&1 </dev/null ||
  { tail -n 20 "$work/log" >&2; fail "apt-get install"; }
rm "$root/usr/sbin/policy-rc.d"
cp "$deb" "$root/packages/new.deb"
# The version before: another number, another default configuration, another shim.
dpkg-deb -R "$deb" "$work/old"
sed -i 's/^Version: .*/Version: 0.0.0+0-1/' "$work/old/DEBIAN/control"
echo '# as it was' >>"$work/old/etc/gpuledger/config.toml"
mv "$work/old/usr/lib/gpuledger/shim-$version" "$work/old/usr/lib/gpuledger/shim-0.0.0+0"
ln -sfn shim-0.0.0+0 "$work/old/usr/lib/gpuledger/shim"
echo older >>"$work/old/usr/lib/gpuledger/shim-0.0.0+0/libcuda.so.1"
(cd "$work/old" && find . -type f ! -path './DEBIAN/*' -printf '%P\n' | sort | xargs -d '\n' md5sum >DEBIAN/md5sums)
dpkg-deb --root-owner-group -b "$work/old" "$root/packages/old.deb" >/dev/null
listing >"$work/before"
install_deb() { in_root dpkg -i --force-downgrade "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "dpkg -i $*"; }; }

step "install: files, modes, programs that run, nothing that was started"
install_deb /packages/old.deb
(cd "$root" && find etc/gpuledger usr/bin/gpuledger* usr/lib/gpuledger -perm /022 ! -type l | grep .) && fail "others can write to these"
in_root gpuledger --version
in_root gpuledger-runtime.containerd --version >/dev/null
[ "$(in_root gpuledger grants --json | tr -d ' \n')" = '{"grants":[]}' ] || fail "the ledger of a new node is empty"
in_root sh -c 'gpuledger doctor 2>/dev/null | grep "^ok       configuration"' >/dev/null || fail "the packaged configuration is not in force"
in_root dpkg --verify gpuledger | grep . && fail "dpkg finds its files changed"

step "upgrade: an untouched configuration follows the package, a changed one stays"
config=$root/etc/gpuledger/config.toml
grep -qx '# as it was' "$config" || fail "the older package's configuration is not there"
install_deb /packages/new.deb
grep -qx '# as it was' "$config" && fail "an untouched configuration stays behind"
install_deb /packages/old.deb
in_root gpuledger inventory simulate --gpus 2 --memory 16GiB --out /etc/gpuledger/node.json >/dev/null
printf 'engine = "none"\n[inventory]\nsource = "simulated"\nfile = "/etc/gpuledger/node.json"\n' >"$config"
cp "$config" "$work/mine"

step "containers run on through an upgrade and a downgrade, with the files that they began with"
in_root gpuledger inventory refresh >/dev/null
reference=$(in_root gpuledger grant --memory 4GiB | grep -oE 'g-[a-z]{12}\.[0-9a-f]{32}' | head -n 1)
bundle=$root/srv/one
mkdir -p "$bundle/rootfs/bin" "$bundle/rootfs/lib"
cp "$root/bin/busybox" "$bundle/rootfs/bin/busybox"
in_root sh -c 'cd /srv/one && runc spec'
jq --arg grant "$reference" --arg group "/$group/one" '
  .process.terminal = false | .process.args = ["/bin/busybox", "sleep", "3600"] | .root.readonly = false | del(.process.rlimits)
  | .annotations["gpuledger.dev/grant"] = $grant | .linux.cgroupsPath = $group
  | .mounts += [{destination: "/lib/shim.so", type: "bind", source: "/usr/lib/gpuledger/shim-0.0.0+0/libcuda.so.1", options: ["rbind", "ro"]}]' \
  "$bundle/config.json" >"$work/config.json"
mv "$work/config.json" "$bundle/config.json"
runtime() { in_root gpuledger-runtime --root /run/test "$@"; }
runtime run --detach --bundle /srv/one one >"$work/log" 2>&1 </dev/null || { cat "$work/log" >&2; fail "a granted container does not start"; }
undisturbed() {
  [ "$(runtime state one | jq -r '"\(.status) \(.pid)"')" = "running $pid" ] || fail "$1: the container does not run on"
  [ "$(in_root gpuledger grants --json | jq -r '.grants[0].state')" = bound ] || fail "$1: its grant is not bound"
  [[ $(runtime exec one /bin/busybox head -c 1 /dev/nvidia0 2>&1 || true) = *'No such device or address' ]] || fail "$1: it does not reach its GPU"
  [ "$(runtime exec one /bin/busybox sha256sum /lib/shim.so)" = "$sum" ] || fail "$1: a file under it has changed"
  cmp -s "$config" "$work/mine" || fail "$1: the administrator's configuration is gone"
}
pid=$(runtime state one | jq .pid)
sum=$(runtime exec one /bin/busybox sha256sum /lib/shim.so)
undisturbed "before"
install_deb --force-confdef --force-confold /packages/new.deb
undisturbed "after the upgrade"
[ ! -e "$root/usr/lib/gpuledger/shim-0.0.0+0" ] || fail "the older shim stays behind"
grep -q '^# ' "$config.dpkg-dist" || fail "the new default configuration is not laid beside the administrator's"
install_deb --force-confdef --force-confold /packages/old.deb
undisturbed "after the downgrade"
install_deb --force-confdef --force-confold /packages/new.deb
runtime delete --force one
[ "$(in_root gpuledger grants --json | jq -r '.grants[0].state')" = free ] || fail "the container is gone and its grant is not free"
rm -rf --one-file-system "$bundle" "$root/run/test" "$root/etc/gpuledger/node.json" "$config".dpkg-*
cp "$work/mine" "$config"

step "removal waits until no engine needs it, and an upgrade does not"
mkdir -p "$root/etc/docker"
in_root gpuledger configure docker >/dev/null
in_root dpkg -r gpuledger >"$work/log" 2>&1 && fail "it was removed under an engine"
grep -q 'hint: gpuledger configure docker --undo --restart' "$work/log" || fail "it does not say what to do"
install_deb --force-confold /packages/new.deb
in_root gpuledger configure docker --undo >/dev/null
rmdir "$root/etc/docker"

step "remove keeps the ledger and the configuration, purge leaves nothing"
in_root dpkg -r gpuledger >/dev/null
[ -e "$config" ] && [ -d "$root/var/lib/gpuledger" ] || fail "a removal is no purge"
install_deb --force-confold /packages/new.deb
in_root dpkg -P gpuledger >/dev/null 2>&1
same purge

step "rpm: install, upgrade over a changed configuration, refuse, erase"
rpm=$(realpath "$rpm")
rpms() { rpm --root "$root" --dbpath /var/lib/rpm --force-debian "$@"; } # Debian's rpm warns without
# What every system with rpm has: their owners are other packages there.
mkdir -p "$root/usr/share/fish/vendor_completions.d" "$root/usr/share/zsh" "$root/usr/share/licenses"
listing >"$work/before"
rpms -i --nodeps "$rpm"
rpms -V --nodeps gpuledger || fail "rpm finds its files changed"
in_root gpuledger --version
echo '# mine' >>"$config"
rpms -U --replacepkgs --nodeps "$rpm"
tail -n 1 "$config" | grep -qx '# mine' || fail "rpm: the administrator's configuration is gone"
mkdir -p "$root/var/lib/gpuledger/configure/crio"
touch "$root/var/lib/gpuledger/configure/crio/record.json"
rpms -e gpuledger 2>"$work/log" && fail "it was erased under an engine"
grep -q 'gpuledger configure crio --undo' "$work/log" || fail "it does not say what to do"
rm -r "$root/var/lib/gpuledger"
rpms -e gpuledger 2>"$work/log" || { cat "$work/log" >&2; fail "rpm -e"; }
rm -rf "$root/var/lib/rpm" "$root"/etc/gpuledger/config.toml.rpm*
rmdir "$root/etc/gpuledger" 2>/dev/null || true
same "rpm -e"

step "the units, as systemd reads them"
mkdir "$work/units"
for unit in "$work/$native"/usr/lib/systemd/system/gpuledger*; do
  sed '/^Documentation=/d; s|/usr/bin/gpuledger|'"$work/$native"'/usr/bin/gpuledger|' "$unit" >"$work/units/${unit##*/}"
done
SYSTEMD_UNIT_PATH="$work/units:" systemd-analyze verify "$work"/units/* 2>&1 | tee "$work/log"
! grep -q gpuledger "$work/log" || fail "systemd-analyze verify"
# The scores that docs/security.md tells.
for score in gpuledgerd:32 gpuledger-inventory:75; do
  systemd-analyze security --offline=true --threshold="${score#*:}" "$work/units/${score%:*}.service" | tail -n 1
done

step "a new user's way, as docs/install.md has it, in a booted system"
kill "$holder"
umount -R "$root/sys" "$root/proc"
packaging/walk.sh "$root" "$deb" "$(ls "$dist"/gpuledger-setup_*_"$native".tar)" "$work" "$group-boot" || fail "packaging/walk.sh"
echo ok
