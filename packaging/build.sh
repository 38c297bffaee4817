#!/bin/bash
# packaging/build.sh [DIRECTORY]: deb and rpm for amd64 and arm64 into DIRECTORY (dist), with SHA256SUMS.
# Two builds of one commit give the same bytes: no time but the commit's, no path and no host name goes into them.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
export PATH=$PATH:/usr/local/go/bin GOFLAGS=-buildvcs=false LC_ALL=C TZ=UTC
umask 022

git() { command git -c safe.directory="$PWD" "$@"; }
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# version: v1.2.3 is 1.2.3; five commits later 1.2.3+5.gabcdef; v1.2.3-rc.1 is 1.2.3~rc.1, which is older than 1.2.3. Before
# the first tag 0.0.0+<time of the commit>.gabcdef. What is not committed says so.
version() {
  local v
  if v=$(git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null); then
    sed -E 's/^v//; s/-dirty$/.dirty/; s/-([0-9]+)-(g[0-9a-f]+)/+\1.\2/; s/-(alpha|beta|rc)/~\1/' <<<"$v"
  else
    v=$(git describe --always --match=NoSuchTag --dirty)
    echo "0.0.0+$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).g${v/-dirty/.dirty}"
  fi
}
VERSION=$(version)
export VERSION

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# compiler ARCH: the C compiler for it; only gpuledger is linked with C, for NVML.
compiler() {
  if [ "$(go env GOHOSTARCH)" = "$1" ]; then echo gcc; return; fi
  case $1 in
    amd64) echo x86_64-linux-gnu-gcc ;;
    arm64) echo aarch64-linux-gnu-gcc ;;
  esac
}

# programs ARCH DIRECTORY. NVML's functions are looked up when they are called, and not every driver has all of them, so
# nothing may ask the loader to find them at the start (-z now): cgo's flags are ours alone.
programs() {
  local name ldflags="-s -w -buildid= -X github.com/gpuledger/gpuledger/internal/version.Version=$VERSION"
  CGO_ENABLED=1 GOARCH=$1 CC=$(compiler "$1") CGO_CFLAGS="-O2 -Wno-deprecated-declarations -ffile-prefix-map=$PWD=." CGO_LDFLAGS="-Wl,--build-id=none" \
    go build -p 2 -trimpath -ldflags "$ldflags" -o "$2/gpuledger" ./cmd/gpuledger
  for name in gpuledger-runtime gpuledger-hook gpuledgerd; do
    CGO_ENABLED=0 GOARCH=$1 go build -p 2 -trimpath -ldflags "$ldflags" -o "$2/$name" ./cmd/$name
  done
}

# shared: what is the same for every architecture, made by the programs of this one.
shared() {
  local to=$work/shared host
  host=$(go env GOHOSTARCH)
  mkdir -p "$to/man" "$to/completions"
  "$work/$host/gpuledger" man | gzip -9n >"$to/man/gpuledger.8.gz"
  "$work/$host/gpuledgerd" man | gzip -9n >"$to/man/gpuledgerd.8.gz"
  "$work/$host/gpuledger" completion bash >"$to/completions/bash"
  "$work/$host/gpuledger" completion zsh >"$to/completions/zsh"
  "$work/$host/gpuledger" completion fish >"$to/completions/fish"
  gzip -9n <CHANGELOG.md >"$to/changelog.gz"
  sed -Ef packaging/config.sed configs/config.toml >"$to/config.toml"
}

# stage ARCH: the tree that is packed.
stage() {
  local to=$work/stage-$1 from=$work/shared share=$work/stage-$1/usr/share
  install -Dt "$to/usr/bin" "$work/$1"/*
  install -Dm644 -t "$to/usr/lib/systemd/system" packaging/systemd/*
  install -Dm644 -t "$to/usr/lib/udev/rules.d" packaging/90-gpuledger.rules
  install -Dm644 -t "$share/man/man8" "$from"/man/*
  install -Dm644 "$from/completions/bash" "$share/bash-completion/completions/gpuledger"
  install -Dm644 "$from/completions/zsh" "$share/zsh/vendor-completions/_gpuledger"
  install -Dm644 "$from/completions/fish" "$share/fish/vendor_completions.d/gpuledger.fish"
  install -Dm644 LICENSE "$share/doc/gpuledger/copyright"
  install -Dm644 -t "$share/doc/gpuledger" "$from/changelog.gz" docs/*.md
  mkdir -p "$share/doc/gpuledger/examples"
  cp -r configs/. "$share/doc/gpuledger/examples"
  chmod -R u=rwX,go=rX "$to"
}

mkdir -p "$out" "$work/bin"
go build -C packaging/tools/nfpm -p 2 -o "$work/bin/" tool
for arch in amd64 arm64; do
  mkdir "$work/$arch"
  programs "$arch" "$work/$arch"
done
shared
rm -f "$out"/*.deb "$out"/*.rpm "$out/SHA256SUMS"
for arch in amd64 arm64; do
  stage "$arch"
  for packager in deb rpm; do
    ARCH=$arch STAGE=$work/stage-$arch SHARED=$work/shared "$work/bin/nfpm" package --config packaging/nfpm.yaml --packager "$packager" --target "$out/" >/dev/null
  done
done
(cd "$out" && sha256sum -- *.deb *.rpm >SHA256SUMS && cat SHA256SUMS)
