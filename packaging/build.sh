#!/bin/bash
# packaging/build.sh [DIRECTORY]: builds deb, rpm, the image of the Kubernetes set-up and that of
# the cluster's agents, for amd64 and arm64, into DIRECTORY (dist). It adds bills of materials
# (CycloneDX) for each architecture and SHA256SUMS.
# Two builds of one commit give the same bytes: no time but the commit's, no path and no host name
# goes into them.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
export PATH=$PATH:/usr/local/go/bin GOFLAGS=-buildvcs=false LC_ALL=C TZ=UTC
umask 022

git() { command git -c safe.directory="$PWD" "$@"; }
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

VERSION=$(packaging/version.sh)
export VERSION

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# compiler ARCH: the C compiler for it. Only gpuledger is linked with C, for NVML.
compiler() {
  if [ "$(go env GOHOSTARCH)" = "$1" ]; then echo gcc; return; fi
  case $1 in
    amd64) echo x86_64-linux-gnu-gcc ;;
    arm64) echo aarch64-linux-gnu-gcc ;;
  esac
}

# programs ARCH DIRECTORY: builds the programs. NVML's functions are looked up when they are called,
# and not every driver has all of them. So the loader must not look them up at the start (-z now),
# and the flags for cgo are only gpuledger's own.
programs() {
  local name ldflags="-s -w -buildid= -X github.com/gpuledger/gpuledger/internal/version.Version=$VERSION"
  CGO_ENABLED=1 GOARCH=$1 CC=$(compiler "$1") CGO_CFLAGS="-O2 -Wno-deprecated-declarations -ffile-prefix-map=$PWD=." CGO_LDFLAGS="-Wl,--build-id=none" \
    go build -p 2 -trimpath -ldflags "$ldflags" -o "$2/gpuledger" ./cmd/gpuledger
  # what it does before Go starts (docs/adr/0097)
  CC=$(compiler "$1") front/build.sh "$1" "cmd/gpuledger-runtime/front_linux_$1.s"
  CGO_ENABLED=0 GOARCH=$1 go build -p 2 -tags front -trimpath -ldflags "$ldflags -E gpuledger_front" -o "$2/gpuledger-runtime" ./cmd/gpuledger-runtime
  for name in gpuledger-hook gpuledgerd; do
    CGO_ENABLED=0 GOARCH=$1 go build -p 2 -trimpath -ldflags "$ldflags" -o "$2/$name" ./cmd/$name
  done
}

# shim ARCH DIRECTORY: the libraries that go into containers. No container's mount is ever written to: each version has a
# directory of its own, and dpkg and rpm replace files by rename.
shim() {
  CC=$(compiler "$1") CFLAGS="-O2 -s -ffile-prefix-map=$PWD/=" shim/build.sh "$2"
}

# manual NAME.SECTION FILE SUMMARY: makes a manual page of a document. Its first heading becomes the
# page's name. A table's rows become paragraphs, because a terminal is narrow.
manual() {
  local name=${1%.*} section=${1##*.}
  { printf '%% %s %s\n# NAME\n%s - %s\n\n' "$name" "$section" "$name" "$3"; sed 1d "$2" | awk -F ' [|] ' '
    !/^[|]/ { print; next }
    /^[|] `/ { sub(/^[|] /, "", $1); sub(/ [|]$/, "", $3); printf "%s = %s\n\n:   %s\n\n", $1, $2, $3 }'; } |
    "$work/bin/md2man" | gzip -9n >"$work/shared/man/$1.gz"
}

# shared: makes the files that are the same for every architecture, with the programs of this one.
shared() {
  local to=$work/shared host name
  host=$(go env GOHOSTARCH)
  mkdir -p "$to/man" "$to/completions"
  "$work/$host/gpuledger" man | gzip -9n >"$to/man/gpuledger.8.gz"
  "$work/$host/gpuledgerd" man | gzip -9n >"$to/man/gpuledgerd.8.gz"
  "$work/$host/gpuledger" completion bash >"$to/completions/bash"
  "$work/$host/gpuledger" completion zsh >"$to/completions/zsh"
  "$work/$host/gpuledger" completion fish >"$to/completions/fish"
  manual gpuledger-runtime.8 docs/man/gpuledger-runtime.md "an OCI runtime that holds containers to the ledger of GPU grants"
  manual gpuledger-hook.8 docs/man/gpuledger-hook.md "an OCI hook that holds containers to the ledger of GPU grants"
  manual gpuledger-config.5 docs/configuration.md "configuration of gpuledger"
  for name in containerd crio docker podman; do
    ln -s gpuledger-runtime.8.gz "$to/man/gpuledger-runtime.$name.8.gz"
  done
  printf 'gpuledger (%s-1) unstable; urgency=medium\n\n  * What has changed stands in changelog.gz.\n\n -- The gpuledger authors <gpuledger@users.noreply.github.com>  %s\n' \
    "$VERSION" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$to/changelog.Debian.gz"
  gzip -9n <CHANGELOG.md >"$to/changelog.gz"
  sed -Ef packaging/config.sed configs/config.toml >"$to/config.toml"
}

# stage ARCH: makes the tree of the package.
stage() {
  local to=$work/stage-$1 from=$work/shared share=$work/stage-$1/usr/share
  install -Dt "$to/usr/bin" "$work/$1"/*
  install -Dm644 -t "$to/usr/lib/systemd/system" packaging/systemd/*
  install -Dm644 -t "$to/usr/lib/udev/rules.d" packaging/90-gpuledger.rules
  install -Dm644 -t "$to/usr/lib/gpuledger/shim-$VERSION" "$work/shim-$1"/*
  ln -s "shim-$VERSION" "$to/usr/lib/gpuledger/shim"
  mkdir -p "$share/man/man8"
  cp -d "$from"/man/*.8.gz "$share/man/man8"
  install -Dm644 -t "$share/man/man5" "$from"/man/*.5.gz
  install -Dm644 "$from/completions/bash" "$share/bash-completion/completions/gpuledger"
  install -Dm644 "$from/completions/zsh" "$share/zsh/vendor-completions/_gpuledger"
  install -Dm644 "$from/completions/fish" "$share/fish/vendor_completions.d/gpuledger.fish"
  install -Dm644 -t "$share/doc/gpuledger" "$from/changelog.gz" docs/*.md
  mkdir -p "$share/doc/gpuledger/examples"
  cp -r configs/. "$share/doc/gpuledger/examples"
  chmod -R u=rwX,go=rX "$to"
}

# image ARCH DEB: makes the image for the set-up by DaemonSet: the package's files without its
# documents, and the program that installs them.
image() {
  local to=$work/image-$1
  mkdir -p "$to/host"
  dpkg-deb -x "$2" "$to/node"
  find "$to/node/usr/share" -mindepth 1 -maxdepth 1 ! -name doc -exec rm -r {} +
  find "$to/node/usr/share/doc" -type f ! -name copyright -delete
  CGO_ENABLED=0 GOARCH=$1 go build -p 2 -trimpath -ldflags "-s -w -buildid=" -o "$to/gpuledger-setup" ./cmd/gpuledger-setup
  "$work/bin/image" pack -root "$to" -arch "$1" -entrypoint /gpuledger-setup -name gpuledger.dev/setup:latest -time "$SOURCE_DATE_EPOCH" \
    -out "$out/gpuledger-setup_${VERSION}_$1.tar"
}

# agents ARCH: makes the image of the cluster's agents. It has one static program, at a path beside
# which the program finds the node's shim.
agents() {
  local to=$work/agents-$1
  mkdir -p "$to/usr/bin" "$to/usr/share/doc/gpuledger"
  CGO_ENABLED=0 GOARCH=$1 go build -C kube -p 2 -trimpath -ldflags "-s -w -buildid= -X github.com/gpuledger/gpuledger/internal/version.Version=$VERSION" \
    -o "$to/usr/bin/gpuledger-kube" ./cmd/gpuledger-kube
  install -m 644 packaging/copyright "$to/usr/share/doc/gpuledger/copyright"
  chmod -R u=rwX,go=rX "$to"
  "$work/bin/image" pack -root "$to" -arch "$1" -entrypoint /usr/bin/gpuledger-kube -name gpuledger.dev/kube:latest -time "$SOURCE_DATE_EPOCH" \
    -out "$out/gpuledger-kube_${VERSION}_$1.tar"
  "$work/bin/sbom" -name gpuledger-kube -version "$VERSION" -time "$SOURCE_DATE_EPOCH" -root "$to" >"$out/gpuledger-kube_${VERSION}_$1.cdx.json"
}

mkdir -p "$out" "$work/bin"
go build -C packaging/tools/nfpm -p 2 -o "$work/bin/" tool
go build -C packaging/tools/sbom -p 2 -o "$work/bin/sbom" .
go build -C packaging/tools/image -p 2 -o "$work/bin/image" .
go build -p 2 -o "$work/bin/md2man" github.com/cpuguy83/go-md2man/v2
for arch in amd64 arm64; do
  mkdir "$work/$arch"
  programs "$arch" "$work/$arch"
  shim "$arch" "$work/shim-$arch"
done
shared
rm -f "$out"/*.deb "$out"/*.rpm "$out"/*.cdx.json "$out"/gpuledger-setup_*.tar "$out"/gpuledger-kube_*.tar "$out/SHA256SUMS"
for arch in amd64 arm64; do
  stage "$arch"
  for packager in deb rpm; do
    ARCH=$arch STAGE=$work/stage-$arch SHARED=$work/shared "$work/bin/nfpm" package --config packaging/nfpm.yaml --packager "$packager" --target "$out/" >/dev/null
  done
  "$work/bin/sbom" -name gpuledger -version "$VERSION" -time "$SOURCE_DATE_EPOCH" -root "$work/stage-$arch" >"$out/gpuledger_${VERSION}_$arch.cdx.json"
  image "$arch" "$(ls "$out"/gpuledger_*_"$arch".deb)"
  agents "$arch"
done
(cd "$out" && sha256sum -- *.deb *.rpm *.cdx.json *.tar >SHA256SUMS && cat SHA256SUMS)
