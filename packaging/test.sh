#!/bin/bash
# packaging/test.sh [DIRECTORY]: tests the packages in DIRECTORY, a path from the repository's root.
# Without it, the script builds them twice, compares, and tests those.
# STEPS="programs debian ..." runs only these: build programs lint debian ubuntu rpm walk release.
# Each system is unpacked from packaging/roots.sh's cache, in mount and pid namespaces of their own,
# and removed again. However this ends, every container and service that it has started ends with
# it.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin LC_ALL=C

if [ -z "${GPULEDGER_TEST_PRIVATE:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "packaging/test.sh: it takes root" >&2; exit 1; }
  GPULEDGER_TEST_PRIVATE=1 exec unshare --mount --pid --fork --kill-child --mount-proc --propagation private "packaging/test.sh" "$@"
fi

work=$(mktemp -d)
group=gpuledger-packages-${work##*.}
root='' holder=''
clean() {
  local i dir
  [ -z "$root" ] || leave_root
  for dir in /sys/fs/cgroup/"$group" /sys/fs/cgroup/*/"$group"; do
    for ((i = 0; i < 100; i++)); do # a cgroup stays busy for a moment after its last process
      [ -d "$dir" ] || break
      find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
  done
  rm -rf --one-file-system "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM HUP

step() { printf '== %3d s: %s\n' "$SECONDS" "$*"; }
fail() { echo "FAIL: $*" >&2; exit 1; }
wanted() { [[ " ${STEPS:-build programs lint debian ubuntu rpm walk release} " = *" $1 "* ]]; }

# make_root NAME: unpacks it to $root.
make_root() {
  root=$work/$1
  packaging/roots.sh "$1" "$root"
  mount --bind "$root" "$root" # a runtime's pivot_root asks for a mount point above it
}

# live_in_root: starts a process with this root. It is not a chroot: a program that a runtime starts
# in a container joins the container's mount namespace, and would find itself at the machine's root.
live_in_root() {
  local i
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mkdir -p "$root/packages/machine"
  # shellcheck disable=SC2016 # the inner shell's
  unshare --mount --propagation private sh -c 'cd "$1" && pivot_root . packages/machine && umount -l /packages/machine && touch /packages/ready && exec sleep infinity' - "$root" &
  holder=$!
  for ((i = 0; i < 600; i++)); do
    [ ! -e "$root/packages/ready" ] || return 0
    sleep 0.1
  done
  fail "cannot go to the new root"
}
in_root() { nsenter --target "$holder" --mount --wd /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }

# leave_root ends the processes of that root.
leave_root() {
  if [ -n "$holder" ]; then
    in_root sh -c 'command -v gpuledger-runtime >/dev/null && gpuledger-runtime --root /run/test delete --force one' >/dev/null 2>&1 || true
    kill "$holder" 2>/dev/null || true
    wait "$holder" 2>/dev/null || true
    holder=
  fi
  ! mountpoint -q "$root" || umount -R "$root" 2>/dev/null || umount -R -l "$root"
  rm -rf --one-file-system "$root"
  root=
}

# everything below the root, with modes, owners, links, sizes and times, but for what dpkg and rpm write about themselves
listing() {
  (cd "$root" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./packages -o -path ./var/lib/dpkg -o -path ./var/lib/rpm -o -path ./var/log/dpkg.log -o -path ./var/lib/dnf -o -path ./var/cache/dnf -o -path './var/log/dnf*' -o -path './var/log/hawkey*' -o -path ./var/cache/man \) -prune \
    -o -type f -printf '%p %m %u %s %T@\n' -o ! -type d -printf '%p %m %u %l\n' -o -type d -printf '%p/ %m %u\n' | sort)
}
same() { diff -u "$work/before" <(listing) || fail "$1 leaves something behind, or took something away"; }

# build_elsewhere builds the present tree, committed or not, in a clone in another directory.
build_elsewhere() {
  git -c safe.directory='*' clone --quiet --no-checkout . "$work/elsewhere"
  git -c safe.directory='*' ls-files --cached --others --exclude-standard -z | { xargs -0 -r ls -d 2>/dev/null || true; } | tar -cT - | tar -xC "$work/elsewhere" # but for what is deleted
  git -C "$work/elsewhere" -c safe.directory='*' reset --quiet
  (umask 077 && TZ=Asia/Tokyo HOME=${HOME:-/root} "$work/elsewhere/packaging/build.sh" "$work/again" >/dev/null)
}

dist=${1:-}
if [ -z "$dist" ]; then
  dist=dist
  if wanted build; then
    step "two builds, in two clones, give the same bytes"
    packaging/build.sh dist
    build_elsewhere
    diff -r dist "$work/again" || fail "the builds differ"
    rm -rf "$work/elsewhere" "$work/again"
  fi
fi
(cd "$dist" && sha256sum --quiet -c SHA256SUMS)

native=$(dpkg --print-architecture)
deb=$(realpath "$dist"/gpuledger_*_"$native".deb)
version=$(dpkg-deb -f "$deb" Version | sed 's/-1$//')
case $native in amd64) rpm=$(realpath "$dist"/*.x86_64.rpm) ;; arm64) rpm=$(realpath "$dist"/*.aarch64.rpm) ;; esac
for arch in amd64 arm64; do
  dpkg-deb -x "$dist"/gpuledger_*_"$arch".deb "$work/$arch"
done

# contents TREE: lists every path with its mode and its target, with the version taken out. Manual
# pages change from version to version, so it does not list them.
contents() {
  (cd "$1" && find . -mindepth 1 \( -path './usr/share/doc/gpuledger/*' ! -name copyright -o -path './usr/share/licenses*' -o -path './usr/share/lintian*' -o -path ./usr/share/doc/gpuledger/copyright \) -prune \
    -o -type d -printf '%P/ %m\n' -o -type l -printf '%P -> %l\n' -o -printf '%P %m\n') | sed "s|shim-$version|shim-VERSION|g" | sort
}

test_programs() {
  local arch name newest library bom program module release modules
  step "files and modes are those of packaging/contents.txt, in the deb and the rpm of each architecture"
  for arch in amd64 arm64; do
    diff -u packaging/contents.txt <(contents "$work/$arch") || fail "the deb for $arch has other files or modes"
    mkdir "$work/rpm-$arch"
    rpm2archive - <"$(ls "$dist"/*."${arch/#amd64/x86_64}".rpm "$dist"/*."${arch/#arm64/aarch64}".rpm 2>/dev/null | head -n 1)" | tar -xzC "$work/rpm-$arch"
    diff -u packaging/contents.txt <(contents "$work/rpm-$arch") || fail "the rpm for $arch has other files or modes"
  done

  step "the programs: static but for gpuledger, which looks NVML's functions up when it calls them"
  [ "$(dpkg-deb -f "$deb" Recommends)" = "runc | crun" ] || fail "the deb recommends $(dpkg-deb -f "$deb" Recommends)"
  for arch in amd64 arm64; do
    for name in gpuledger-runtime gpuledger-hook gpuledgerd; do
      ! readelf -dW "$work/$arch/usr/bin/$name" | grep -q NEEDED || fail "$arch $name is not static"
    done
    [ "$(readelf -dW "$work/$arch/usr/bin/gpuledger" | grep NEEDED)" = "$(readelf -dW "$work/$arch/usr/bin/gpuledger" | grep 'NEEDED.*libc.so.6')" ] || fail "$arch gpuledger needs more than libc"
    ! readelf -dW "$work/$arch/usr/bin/gpuledger" | grep -q 'BIND_NOW\|FLAGS.*NOW' || fail "$arch gpuledger is bound at the start: NVML's functions would have to be there"
    newest=$(readelf -VW "$work/$arch/usr/bin/gpuledger" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
    [ "$(printf '%s\nGLIBC_2.34\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.34 ] || fail "$arch gpuledger needs $newest, and the packages say GLIBC_2.34"
    for library in libcuda.so.1 libcuda-throttle.so.1 libnvidia-ml.so.1; do
      [ "$(stat -c '%a %u' "$work/$arch/usr/lib/gpuledger/shim-$version/$library")" = "644 0" ] || fail "$arch: the shim's $library is not in a directory of its version"
    done
  done

  step "the bill of materials names every module of every program, and every file with its sum"
  for arch in amd64 arm64; do
    bom=$(ls "$dist"/gpuledger_*_"$arch".cdx.json)
    for program in "$work/$arch"/usr/bin/gpuledger*; do
      [ ! -L "$program" ] || continue
      modules=0
      while read -r module release; do
        jq -e --arg url "pkg:golang/$module@$release" 'any(.components[]; .purl == $url)' "$bom" >/dev/null || fail "$bom: no $module $release of ${program##*/}"
        modules=$((modules + 1))
      done < <(go version -m "$program" | awk '$1 == "dep" { print $2, $3 }')
      [ "$modules" -gt 0 ] || fail "go version -m tells no module of ${program##*/}"
    done
    jq -r '.components[] | select(.type == "file") | .hashes[0].content + "  " + (.name | ltrimstr("/"))' "$bom" >"$work/sums"
    [ "$(wc -l <"$work/sums")" -gt 20 ] || fail "$bom names hardly a file"
    (cd "$work/$arch" && sha256sum --quiet -c "$work/sums") || fail "$bom is of other files"
  done

  test_agents

  step "the Kubernetes manifests and the chart, read as strictly as an API server does, and one what the other is"
  go test -C packaging/tools/manifests -count=1 ./...
}

# test_agents: the image of the cluster's agents holds one static program, which the image starts.
test_agents() {
  local arch tree bom layer file module release
  step "the image of the cluster's agents: one static program, by the name that the manifests have, and its bill of materials"
  for arch in amd64 arm64; do
    tree=$work/agents-$arch bom=$(ls "$dist"/gpuledger-kube_*_"$arch".cdx.json) file=$(ls "$dist"/gpuledger-kube_*_"$arch".tar)
    mkdir "$tree"
    layer=$(tar -xOf "$file" manifest.json | jq -er '.[0] | select(.RepoTags == ["gpuledger.dev/kube:latest"] and (.Layers | length) == 1) | .Layers[0]') || fail "$file has another name or more layers"
    case $layer in *.gz) tar -xOf "$file" "$layer" | gunzip ;; *) tar -xOf "$file" "$layer" ;; esac | tar -xC "$tree"
    tar -xOf "$file" "$(tar -xOf "$file" manifest.json | jq -r '.[0].Config')" |
      jq -e --arg arch "$arch" '.architecture == $arch and .os == "linux" and .config.Entrypoint == ["/usr/bin/gpuledger-kube"]' >/dev/null || fail "$file is made for something else"
    [ "$(cd "$tree" && find . -type f -printf '%P %m\n' | sort | paste -sd ' ')" = "usr/bin/gpuledger-kube 755 usr/share/doc/gpuledger/copyright 644" ] || fail "$file holds something else"
    ! readelf -dW "$tree/usr/bin/gpuledger-kube" | grep -q NEEDED || fail "$arch gpuledger-kube is not static"
    while read -r module release; do
      jq -e --arg url "pkg:golang/$module@$release" 'any(.components[]; .purl == $url)' "$bom" >/dev/null || fail "$bom: no $module $release"
    done < <(go version -m "$tree/usr/bin/gpuledger-kube" | awk '$1 == "dep" && $2 !~ /^github.com\/gpuledger/ { print $2, $3 }')
    jq -r '.components[] | select(.type == "file") | .hashes[0].content + "  " + (.name | ltrimstr("/"))' "$bom" >"$work/sums"
    [ "$(wc -l <"$work/sums")" = 2 ] && (cd "$tree" && sha256sum --quiet -c "$work/sums") || fail "$bom is of other files"
  done
  [ "$(chroot "$work/agents-$native" /usr/bin/gpuledger-kube --version)" = "gpuledger-kube version $version" ] || fail "another version is in the image"
}

test_lint() {
  step "lintian and rpmlint: every tag is explained in packaging/lintian-overrides and packaging/rpmlint.toml"
  lintian --fail-on error,warning --tag-display-limit 0 --suppress-tags initial-upload-closes-no-bugs --allow-root "$deb" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail lintian; }
  # rpmlint unpacks by a plain cpio, and paths in these packages are absolute: it would install them on this machine.
  mkdir "$work/relative"
  printf '#!/bin/sh\nexec %s --no-absolute-filenames "$@"\n' "$(command -v cpio)" >"$work/relative/cpio"
  chmod 755 "$work/relative/cpio"
  PATH=$work/relative:$PATH rpmlint --config packaging/rpmlint.toml "$rpm" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail rpmlint; }
  grep -q ' 0 errors, 0 warnings' "$work/log" || { cat "$work/log" >&2; fail "rpmlint has something to say"; }
}

# older TREE: changes a package's tree to that of the version before: another default configuration,
# another shim.
older() {
  echo '# as it was' >>"$1/etc/gpuledger/config.toml"
  mv "$1/usr/lib/gpuledger/shim-$version" "$1/usr/lib/gpuledger/shim-0.0.0+0"
  ln -sfn shim-0.0.0+0 "$1/usr/lib/gpuledger/shim"
  echo older >>"$1/usr/lib/gpuledger/shim-0.0.0+0/libcuda.so.1"
}

install_deb() { in_root dpkg -i --force-unsafe-io --force-downgrade "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "dpkg -i $*"; }; }

# test_units: that system's systemd finds nothing wrong with the installed units, and its udev does by the
# rules what they are for.
test_units() {
  in_root sh -c 'systemd-analyze verify --man=no /usr/lib/systemd/system/gpuledger* /usr/lib/systemd/system/run-gpuledger*' >"$work/log" 2>&1 || true
  ! grep -i gpuledger "$work/log" || fail "systemd-analyze verify"
  cp packaging/rules.sh "$root/packages/"
  in_root /packages/rules.sh /usr/lib/udev/rules.d/90-gpuledger.rules || fail "udev takes the inventory where it should not, or not where it should"
}

# test_completions: each shell's completions, with the files where the package installs them.
test_completions() {
  local bash zsh fish
  bash=$(in_root bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader gpuledger; COMP_WORDS=(gpuledger gr) COMP_CWORD=1; _gpuledger; echo "${COMPREPLY[*]}"')
  [ "$bash" = "grant grants" ] || fail "bash completes \"gpuledger gr\" to \"$bash\""
  # shellcheck disable=SC2016 # zsh's
  zsh=$(in_root zsh -fc 'fpath=(/usr/share/zsh/vendor-completions $fpath); autoload -Uz _gpuledger; compdef() { :; }; _describe() { print -r -- ${(P)2} }; words=(gpuledger gr); CURRENT=2; _gpuledger')
  [[ $zsh = *grant*grants* ]] || fail "zsh completes \"gpuledger gr\" to \"$zsh\""
  fish=$(in_root env HOME=/packages fish -c 'complete -C "gpuledger gr"' | cut -f 1 | sort | paste -sd ' ')
  [ "$fish" = "grant grants" ] || fail "fish completes \"gpuledger gr\" to \"$fish\""
}

# test_deb NAME: installs, upgrades, removes and purges the package in a system.
test_deb() {
  local config mine=$work/mine bundle reference pid sum
  step "$1: install: files, modes, programs that run, nothing that was started"
  make_root "$1"
  live_in_root
  cp "$deb" "$root/packages/new.deb"
  rm -rf "$work/old"
  dpkg-deb -R "$deb" "$work/old"
  sed -i 's/^Version: .*/Version: 0.0.0+0-1/' "$work/old/DEBIAN/control"
  older "$work/old"
  (cd "$work/old" && find . -type f ! -path './DEBIAN/*' -printf '%P\n' | sort | xargs -d '\n' md5sum >DEBIAN/md5sums)
  dpkg-deb --root-owner-group -Zgzip -z1 -b "$work/old" "$root/packages/old.deb" >/dev/null
  listing >"$work/before"
  install_deb /packages/old.deb
  ! (cd "$root" && find etc/gpuledger usr/bin/gpuledger* usr/lib/gpuledger -perm /022 ! -type l | grep .) || fail "others can write to these"
  in_root gpuledger --version
  in_root gpuledger-runtime.containerd --version >/dev/null
  [ "$(in_root gpuledger grants --json | tr -d ' \n')" = '{"grants":[]}' ] || fail "the ledger of a new node is empty"
  in_root sh -c 'gpuledger doctor 2>/dev/null | grep "^ok       configuration"' >/dev/null || fail "the packaged configuration is not in force"
  ! in_root dpkg --verify gpuledger | grep . || fail "dpkg finds its files changed"

  step "$1: the units, as its systemd reads them"
  test_units
  if [ "$1" = debian ]; then
    test_completions
    local unit score
    for unit in gpuledgerd gpuledger-inventory; do
      score=$(in_root systemd-analyze security --offline=true "/usr/lib/systemd/system/$unit.service" | grep -oE 'Overall exposure level.*: [0-9.]+' | grep -oE '[0-9.]+$')
      echo "systemd-analyze security $unit.service: $score"
      grep -q "\`$unit.service\` $score" docs/security.md || fail "docs/security.md has another score of $unit.service than $score"
    done
  fi
  rm -f "$root/run/systemd/systemd-units-load" # systemd-analyze's own

  step "$1: upgrade: an untouched configuration follows the package, a changed one stays"
  config=$root/etc/gpuledger/config.toml
  grep -qx '# as it was' "$config" || fail "the older package's configuration is not there"
  install_deb /packages/new.deb
  ! grep -qx '# as it was' "$config" || fail "an untouched configuration stays behind"
  install_deb /packages/old.deb
  in_root gpuledger inventory simulate --gpus 2 --memory 16GiB --out /etc/gpuledger/node.json >/dev/null
  printf 'engine = "none"\n[inventory]\nsource = "simulated"\nfile = "/etc/gpuledger/node.json"\n' >"$config"
  cp "$config" "$mine"

  step "$1: containers run on through an upgrade and a downgrade, with the files that they began with"
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
  runtime run --detach --bundle /srv/one one >"$work/log" 2>&1 </dev/null || { cat "$work/log" >&2; fail "a granted container does not start"; }
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
  cp "$mine" "$config"

  step "$1: removal waits until no engine needs it, and an upgrade does not"
  mkdir -p "$root/etc/docker"
  in_root gpuledger configure docker >/dev/null
  ! in_root dpkg -r gpuledger >"$work/log" 2>&1 || fail "it was removed under an engine"
  grep -q 'hint: gpuledger configure docker --undo --restart' "$work/log" || fail "it does not say what to do"
  install_deb --force-confold /packages/new.deb
  in_root gpuledger configure docker --undo >/dev/null
  rmdir "$root/etc/docker"

  step "$1: remove keeps the ledger and the configuration, purge leaves nothing"
  in_root dpkg -r gpuledger >/dev/null
  [ -e "$config" ] && [ -d "$root/var/lib/gpuledger" ] || fail "a removal is no purge"
  mkdir -p "$root/usr/lib/gpuledger"
  touch "$root/usr/lib/gpuledger/setup.list"
  in_root dpkg -P gpuledger >/dev/null 2>"$work/log"
  grep -q 'setup.list is of another installation' "$work/log" && [ -d "$root/var/lib/gpuledger" ] || fail "a late purge takes the ledger of gpuledger-setup's installation"
  rm -r "$root/usr/lib/gpuledger"
  install_deb --force-confold /packages/new.deb
  in_root sh -c 'mkdir -p /run/gpuledger/mps/a/pipe && mount -t tmpfs tmpfs /run/gpuledger/mps/a/pipe' # an MPS daemon's
  in_root dpkg -P gpuledger >/dev/null 2>&1
  same "purge in $1"
  echo "$(wc -l <"$work/before") files and directories are as they were"
  leave_root
}
runtime() { in_root gpuledger-runtime --root /run/test "$@"; }
undisturbed() {
  [ "$(runtime state one | jq -r '"\(.status) \(.pid)"')" = "running $pid" ] || fail "$1: the container does not run on"
  [ "$(in_root gpuledger grants --json | jq -r '.grants[0].state')" = bound ] || fail "$1: its grant is not bound"
  [[ $(runtime exec one /bin/busybox head -c 1 /dev/nvidia0 2>&1 || true) = *'No such device or address' ]] || fail "$1: it does not reach its GPU"
  [ "$(runtime exec one /bin/busybox sha256sum /lib/shim.so)" = "$sum" ] || fail "$1: a file under it has changed"
  cmp -s "$config" "$work/mine" || fail "$1: the administrator's configuration is gone"
}

# old_rpm: the version before, made by rpmbuild out of this one's files and scripts.
old_rpm() {
  local tree=$work/rpm-old spec=$work/gpuledger.spec script
  mkdir "$tree"
  rpm2archive - <"$rpm" | tar -xzC "$tree"
  older "$tree"
  {
    printf 'Name: gpuledger\nVersion: 0.0.0+0\nRelease: 1\nSummary: The version before\nLicense: Apache-2.0\nAutoReqProv: no\n'
    printf '%%global _binary_payload w1.gzdio\n%%global __os_install_post %%{nil}\n%%global debug_package %%{nil}\n%%description\nThe version before.\n%%install\ncp -a %s/. %%{buildroot}/\n' "$tree"
    for script in post:postinstall preun:preremove postun:postremove; do
      printf '%%%s\n' "${script%:*}"
      sed 's/%/%%/g' "packaging/scripts/${script#*:}.sh"
    done
    printf '%%files\n%%dir /etc/gpuledger\n%%config(noreplace) /etc/gpuledger/config.toml\n/usr/bin/*\n/usr/lib/gpuledger\n/usr/lib/systemd/system/*\n/usr/lib/udev/rules.d/*\n'
    (cd "$tree" && find usr/share -type f -printf '/%p\n' -o -type l -printf '/%p\n')
    (cd "$tree" && find usr/share/doc/gpuledger usr/share/licenses/gpuledger -type d -printf '%%dir /%p\n')
  } >"$spec"
  rpmbuild --quiet -bb --define "_topdir $work/rpmbuild" --define "_build_id_links none" "$spec" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; fail rpmbuild; }
  ls "$work"/rpmbuild/RPMS/*/gpuledger-*.rpm
}

test_rpm() {
  local config old
  step "rpm: install, with its dependencies, into a system that rpm has made"
  make_root rpm
  mount -t proc proc "$root/proc"
  mkdir -p "$root"/{var/tmp,var/cache,etc/dnf/modules.d} # rpm's and dnf's own
  mknod -m 666 "$root/dev/null" c 1 3
  config=$root/etc/gpuledger/config.toml
  old=$(old_rpm)
  rpms() { rpm --root "$root" --dbpath /var/lib/rpm --force-debian "$@"; } # Debian's rpm warns without
  here() { chroot "$root" /usr/bin/sh -c "$*"; }
  listing >"$work/before"
  rpms -i "$old"
  [ "$(rpms -q gpuledger)" = "gpuledger-0.0.0+0-1.$(rpm --eval '%{_target_cpu}')" ] || fail "rpm knows $(rpms -q gpuledger)"
  rpms -V gpuledger || fail "rpm finds its files changed"
  here gpuledger --version

  step "rpm: upgrade and downgrade: an untouched configuration follows the package, a changed one stays"
  grep -qx '# as it was' "$config" || fail "the older package's configuration is not there"
  rpms -U "$rpm"
  ! grep -qx '# as it was' "$config" || fail "an untouched configuration stays behind"
  rpms -V gpuledger || fail "rpm finds its files changed"
  [ ! -e "$root/usr/lib/gpuledger/shim-0.0.0+0" ] || fail "the older shim stays behind"
  [ "$(here gpuledger --version)" = "gpuledger version $version" ] || fail "another version is there"
  rpms -U --oldpackage "$old"
  echo '# mine' >>"$config"
  cp "$config" "$work/mine"
  rpms -U "$rpm" >"$work/log" 2>&1
  cmp "$config" "$work/mine" || fail "the administrator's configuration is gone"
  [ -e "$config.rpmnew" ] || fail "the new default configuration is not laid beside the administrator's"
  rm "$config.rpmnew"

  step "rpm: erasing waits until no engine needs it, and leaves nothing but what says so"
  mkdir -p "$root/var/lib/gpuledger/configure/crio"
  touch "$root/var/lib/gpuledger/configure/crio/record.json"
  ! rpms -e gpuledger 2>"$work/log" || fail "it was erased under an engine"
  grep -q 'gpuledger configure crio --undo' "$work/log" || fail "it does not say what to do"
  rm -r "$root/var/lib/gpuledger"
  rpms -e gpuledger 2>"$work/log" || { cat "$work/log" >&2; fail "rpm -e"; }
  cmp "$config.rpmsave" "$work/mine" || fail "the administrator's configuration is gone"
  rm "$config.rpmsave"
  rmdir "$root/etc/gpuledger"
  same "rpm -e"
  echo "$(wc -l <"$work/before") files and directories are as they were"

  step "rpm: dnf install, upgrade and remove, as docs/install.md says"
  mkdir "$work/home"
  echo '%_dbpath /var/lib/rpm' >"$work/home/.rpmmacros" # Debian's would be root's own
  dnfs() { HOME=$work/home dnf --quiet --assumeyes --installroot="$root" --releasever=1 --disablerepo='*' --setopt=reposdir=/nowhere --setopt=cachedir=/var/cache/dnf "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "dnf $*"; }; }
  dnfs install "$old"
  [ -x "$root/usr/bin/gpuledger" ] || fail "dnf has installed nothing"
  dnfs upgrade "$rpm"
  [ "$(here gpuledger --version)" = "gpuledger version $version" ] || fail "dnf has not upgraded"
  dnfs remove gpuledger
  same "dnf remove"
  leave_root
}

test_walk() {
  step "a new user's way, as docs/install.md shows it, in a booted system"
  test/engines/build.sh crio crictl
  make_root debian
  rm "$root/usr/bin/crun" # Podman would prefer it to runc, and it refuses a hybrid of cgroup v1 and v2
  packaging/walk.sh "$root" "$deb" "$(realpath "$dist"/gpuledger-setup_*_"$native".tar)" "$work" "$group-boot" || fail "packaging/walk.sh"
  leave_root
}

# test_release: a signed release, used as users would: by apt, dnf, krew, helm and containerd.
test_release() {
  local to=$work/release key=release@example.com file program version
  version=$(packaging/version.sh)
  step "a release, signed by a key of this test's"
  export GNUPGHOME=$work/gnupg
  mkdir -m 700 "$GNUPGHOME"
  gpg --batch --quiet --passphrase '' --quick-generate-key "$key" ed25519 sign never 2>"$work/log" || { cat "$work/log" >&2; fail "gpg makes no key"; }
  ! RELEASE_KEY=nobody@example.com packaging/release.sh "$to" 2>"$work/log" || fail "it signs with a key that is not there"
  grep -q 'cannot sign: gpg has no secret key nobody@example.com' "$work/log" || fail "it does not say that it has no such key"
  [ ! -e "$to" ] || fail "it builds what it cannot sign"
  RELEASE_KEY=$key RELEASE_REGISTRY=registry.example.com/gpuledger RELEASE_URL=https://example.com/release packaging/release.sh "$to"
  (cd "$to" && sha256sum --quiet -c SHA256SUMS && [ "$(find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' ! -name gpuledger.asc | wc -l)" = "$(wc -l <SHA256SUMS)" ]) || fail "SHA256SUMS is of other files"
  gpg --batch --quiet --verify "$to/SHA256SUMS.asc" "$to/SHA256SUMS" 2>/dev/null || fail "the signature of SHA256SUMS"
  grep -q '^# gpuledger ' "$to/RELEASE-NOTES.md" && grep -q '^- ' "$to/RELEASE-NOTES.md" || fail "the release notes say nothing"

  step "release: apt installs from its repository, and refuses a changed one"
  make_root debian
  live_in_root
  cp -r "$to/apt" "$root/packages/"
  cp "$to/gpuledger.asc" "$root/packages/"
  echo "deb [signed-by=/packages/gpuledger.asc] file:/packages/apt stable main" >"$root/packages/gpuledger.list"
  apts() { in_root apt-get -qq -o Dir::Etc::SourceList=/packages/gpuledger.list -o Dir::Etc::SourceParts=- -o APT::Sandbox::User=root "$@"; }
  apts update >"$work/log" 2>&1 && apts install --yes --no-install-recommends gpuledger >>"$work/log" 2>&1 || { cat "$work/log" >&2; fail "apt-get install from the release"; }
  [ "$(in_root gpuledger --version)" = "gpuledger version $version" ] || fail "apt has installed another version"
  sed -i 's/^Suite: stable/Suite: stable\nChanged: yes/' "$root/packages/apt/dists/stable/InRelease"
  rm "$root/packages/apt/dists/stable/Release.gpg"
  in_root find /var/lib/apt/lists -type f -delete # apt goes on with what it has, otherwise
  ! apts update >"$work/log" 2>&1 || fail "apt takes a repository whose signature is of another text"
  leave_root

  step "release: dnf installs from its repository, by its signature"
  make_root rpm
  mount -t proc proc "$root/proc"
  mkdir -p "$root"/{var/tmp,var/cache,etc/dnf/modules.d} "$work/dnf"
  mknod -m 666 "$root/dev/null" c 1 3
  printf '%%_dbpath /var/lib/rpm\n' >"$work/dnf/.rpmmacros"
  dnf_release() { HOME=$work/dnf dnf --quiet --assumeyes --installroot="$root" --releasever=1 --setopt=reposdir=/nowhere --setopt=cachedir=/var/cache/dnf --repofrompath="release,file://$1" --repo=release \
    --setopt=release.gpgcheck=0 --setopt=release.repo_gpgcheck=1 --setopt="release.gpgkey=file://$to/gpuledger.asc" install gpuledger >"$work/log" 2>&1; }
  dnf_release "$to/rpm" || { cat "$work/log" >&2; fail "dnf install from the release"; }
  [ "$(chroot "$root" /usr/bin/gpuledger --version)" = "gpuledger version $version" ] || fail "dnf has installed another version"
  leave_root

  step "release: kubectl gpuledger for five platforms, as the manifest for krew has them"
  for file in "$to"/kubectl-gpuledger_*.tar.gz; do
    grep -A1 "^      uri: https://example.com/release/${file##*/}\$" "$to/krew.yaml" | grep -qx "      sha256: $(sha256sum "$file" | cut -d ' ' -f 1)" || fail "krew.yaml has another sum of ${file##*/}"
    program=$(tar -tzf "$file" | grep kubectl-gpuledger)
    tar -tzf "$file" | grep -q '^kubectl-inspect-cgpu' || fail "${file##*/} has no kubectl inspect cgpu"
    case $file in
      *_windows_*) [ "$(tar -xzOf "$file" "$program" | head -c 2)" = MZ ] ;;
      *_darwin_*) [ "$(tar -xzOf "$file" "$program" | head -c 4 | od -An -tx1 | tr -d ' ')" = cffaedfe ] ;;
      *) [ "$(tar -xzOf "$file" "$program" | head -c 4 | tail -c 3)" = ELF ] ;;
    esac || fail "${file##*/} is a program for something else"
  done
  [ "$(grep -c '^      uri: ' "$to/krew.yaml")" = 5 ] || fail "krew.yaml has another number of platforms"
  tar -xzC "$work" -f "$(ls "$to"/kubectl-gpuledger_*_linux_"$native".tar.gz)" kubectl-gpuledger
  [ "$("$work/kubectl-gpuledger" --version)" = "kubectl gpuledger version $version" ] || fail "kubectl-gpuledger is of another version"

  step "release: the chart and the images, read by helm and by containerd's and Docker's libraries"
  RELEASE=$to go test -C packaging/tools/image -count=1 -run '^TestRelease' ./...
  RELEASE=$to go test -C packaging/tools/manifests -count=1 -run '^TestRelease' ./...
}

! wanted programs || test_programs
! wanted lint || test_lint
! wanted debian || test_deb debian
! wanted ubuntu || test_deb ubuntu
! wanted rpm || test_rpm
! wanted walk || test_walk
! wanted release || test_release
step ok
