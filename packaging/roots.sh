#!/bin/bash
# packaging/roots.sh NAME DIRECTORY: a fresh system in DIRECTORY, which is new or empty. NAME is
#   debian   Debian 12 with runc, systemd, containerd, Podman and the shells that have completions
#   ubuntu   Ubuntu 22.04 with runc and systemd
#   rpm      a system that rpm alone has filled: shell, tools and C library of this machine, packed by rpmbuild
# What was made once stays in .cache/roots, until its recipe here changes; remove it to have newer packages.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C
name=$1
mkdir -p "$2"
to=$(realpath "$2")
cache=$PWD/.cache/roots

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
log=$work/log
fail() { tail -n 20 "$log" >&2; echo "roots: cannot make $name: $*" >&2; exit 1; }

# bootstrap SUITE MIRROR COMPONENTS KEYRING PACKAGE...
bootstrap() {
  local suite=$1 mirror=$2 components=$3 keyring=$4
  shift 4
  # In a mount namespace of its own, as every mount here, so that no mount stays however this ends.
  unshare --mount --propagation private debootstrap --variant=minbase --components="$components" --keyring="$keyring" "$suite" "$work/root" "$mirror" >"$log" 2>&1 || fail debootstrap
  # debootstrap cannot order what engines need; apt can. Nothing may start its service.
  printf '#!/bin/sh\nexit 101\n' >"$work/root/usr/sbin/policy-rc.d"
  chmod 755 "$work/root/usr/sbin/policy-rc.d"
  mkdir -p "$work/root/etc/apt/apt.conf.d"
  # shellcheck disable=SC2016 # the inner shell's
  unshare --mount --propagation private sh -c '
    mount -t proc proc "$1/proc" && root=$1 && shift &&
      exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive apt-get -q -o APT::Sandbox::User=root install -y --no-install-recommends "$@"' \
    - "$work/root" "$@" >"$log" 2>&1 </dev/null || fail "apt-get install"
  rm -rf "$work/root/usr/sbin/policy-rc.d" "$work/root"/var/cache/apt/archives/*.deb
}

make_debian() {
  bootstrap bookworm http://deb.debian.org/debian main /usr/share/keyrings/debian-archive-keyring.gpg \
    runc crun busybox-static systemd systemd-sysv dbus udev jq containerd podman conmon libseccomp2 bash-completion zsh fish
}

# Debian does not have the keys of Ubuntu's archive. They come from that archive, and their checksum
# is known.
make_ubuntu() {
  local mirror=http://archive.ubuntu.com/ubuntu deb=$work/keyring.deb
  [ "$(dpkg --print-architecture)" = amd64 ] || mirror=http://ports.ubuntu.com/ubuntu-ports
  /usr/lib/apt/apt-helper download-file "$mirror/pool/main/u/ubuntu-keyring/ubuntu-keyring_2021.03.26_all.deb" "$deb" \
    SHA256:0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f >"$log" 2>&1 || fail "no keys of Ubuntu's archive"
  dpkg-deb -x "$deb" "$work/keyring"
  bootstrap jammy "$mirror" main,universe "$work/keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg" runc busybox-static systemd systemd-sysv dbus udev jq
}

# rpm's own programs make the system and check its dependencies. The packages are made here, from
# this machine's files.
make_rpm() {
  local tree=$work/tree program library
  mkdir -p "$tree"/{usr/bin,usr/lib,usr/lib64,etc,var/lib,var/log,run,proc,sys,dev,tmp}
  ln -s usr/bin "$tree/bin"
  ln -s usr/lib "$tree/lib"
  ln -s usr/lib64 "$tree/lib64"
  for program in sh sed head rm rmdir umount grep basename dirname cat ls; do
    install -m 755 "$(realpath "$(command -v $program)")" "$tree/usr/bin/$program"
  done
  { for program in "$tree"/usr/bin/*; do ldd "$program" 2>/dev/null || true; done; ldd "$(command -v rpm)"; } | grep -oE '/[^ ]+' | sort -u | while read -r library; do
    case ${library##*/} in
      ld-linux*) install -m 755 "$(realpath "$library")" "$tree/usr/lib64/${library##*/}"; [ "$(uname -m)" = x86_64 ] || install -m 755 "$(realpath "$library")" "$tree/usr/lib/${library##*/}" ;;
      libc.so.6 | libdl.so.2 | libm.so.6 | libpthread.so.0 | libselinux.so.1 | libpcre2-8.so.0 | libacl.so.1 | libattr.so.1 | libmount.so.1 | libblkid.so.1) install -m 755 "$(realpath "$library")" "$tree/usr/lib64/${library##*/}" ;;
    esac
  done
  # The loader of Debian searches its own directories first, and these last.
  mkdir -p "$tree/etc/ld.so.conf.d"
  echo /usr/lib64 >"$tree/etc/ld.so.conf"
  ldconfig -r "$tree"
  printf 'ID=gpuledger-test\nNAME="A system of rpm"\n' >"$tree/etc/os-release"
  mkdir -p "$tree/usr/share"/{fish/vendor_completions.d,zsh/vendor-completions,bash-completion/completions,licenses,man/man5,man/man8,doc} \
    "$tree/usr/lib"/{systemd/system,udev/rules.d}
  cat >"$work/base.spec" <<SPEC
Name: base
Version: 1
Release: 1
Summary: What gpuledger's package needs of a system
License: none
Provides: libc.so.6(GLIBC_2.34)(64bit) = 1, runc = 1, /bin/sh
AutoReqProv: no
%global _binary_payload w1.gzdio
%global __os_install_post %{nil}
%global debug_package %{nil}
%description
The parts of this machine that a package's scripts and programs use.
%install
cp -a $tree/. %{buildroot}/
%files
/*
SPEC
  rpmbuild --quiet -bb --define "_topdir $work/build" --define "_build_id_links none" "$work/base.spec" >"$log" 2>&1 || fail rpmbuild
  mkdir "$work/root"
  rpm --root "$work/root" --dbpath /var/lib/rpm --initdb
  rpm --root "$work/root" --dbpath /var/lib/rpm --force-debian -i "$work"/build/RPMS/*/base-*.rpm >"$log" 2>&1 || fail "rpm -i"
}

tar=$cache/$name-$(declare -f bootstrap "make_$name" | sha256sum | cut -c 1-12).tar
if [ ! -e "$tar" ]; then
  echo "roots: making $name, once; this takes some minutes" >&2
  "make_$name"
  mkdir -p "$cache"
  rm -f "$cache/$name"-*.tar
  tar -C "$work/root" --numeric-owner --xattrs --acls --one-file-system -cf "$tar.new" .
  mv "$tar.new" "$tar"
fi
tar -C "$to" --numeric-owner --xattrs --xattrs-include='*' --acls -xpf "$tar"
