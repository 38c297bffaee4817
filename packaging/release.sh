#!/bin/bash
# packaging/release.sh [DIRECTORY]: builds everything that a release has into DIRECTORY (dist):
# what packaging/build.sh builds, `kubectl gpuledger` for Linux, macOS and Windows with a manifest
# for krew, images for both architectures and the chart as archives of OCI layouts, an apt and a
# dnf repository, the release notes, and SHA256SUMS over all of it.
#
#   RELEASE_REGISTRY=registry.example.com/gpuledger  names of images and chart; the chart pulls them
#   RELEASE_URL=https://example.com/v1.2.3           where users will find the files
#   RELEASE_KEY=KEY                                  a key of the caller's gpg; it signs SHA256SUMS
#                                                    and both repositories
#
# Two releases of one commit have the same bytes, but for the signatures.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
export PATH=$PATH:/usr/local/go/bin GOFLAGS=-buildvcs=false LC_ALL=C TZ=UTC
umask 022

die() { echo "packaging/release.sh: $*" >&2; exit 1; }
step() { printf '== %3d s: %s\n' "$SECONDS" "$*"; }

key=${RELEASE_KEY:-}
[ -z "$key" ] || gpg --batch --list-secret-keys "$key" >/dev/null 2>&1 || die "cannot sign: gpg has no secret key $key; import it, or leave RELEASE_KEY away"
VERSION=$(packaging/version.sh)
SOURCE_DATE_EPOCH=$(git -c safe.directory="$PWD" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# Helm and krew want a semantic version, and a tag of an image has no plus.
semantic=${VERSION/\~/-}
tag=${semantic/+/_}
registry=${RELEASE_REGISTRY:-gpuledger.dev}
url=${RELEASE_URL:-https://github.com/gpuledger/gpuledger/releases/download/v$semantic}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# tarball FILE DIRECTORY NAME...: packs files, the same bytes each time.
tarball() {
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --format=ustar -C "$2" -c "${@:3}" | gzip -9n >"$1"
}

step "packages, images and bills of materials"
packaging/build.sh "$out" >/dev/null
go build -C packaging/tools/image -p 2 -o "$work/image" .
go build -C packaging/tools/sbom -p 2 -o "$work/sbom" .
rm -rf "$out"/apt "$out"/rpm "$out"/kubectl-gpuledger_* "$out"/*.oci.tar "$out"/gpuledger-[0-9]*.tgz "$out"/krew.yaml "$out"/RELEASE-NOTES.md "$out"/SHA256SUMS* "$out"/gpuledger.asc

# The platforms of `kubectl gpuledger`.
platforms="linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64"

# plugin OS ARCH: builds, packs and describes `kubectl gpuledger` for a platform.
plugin() {
  local tree=$work/plugin-$1-$2 file=kubectl-gpuledger_${VERSION}_$1_$2 program=kubectl-gpuledger
  local inspect=kubectl-inspect-cgpu
  [ "$1" != windows ] || { program=$program.exe inspect=$inspect.cmd; }
  mkdir "$tree"
  CGO_ENABLED=0 GOOS=$1 GOARCH=$2 go build -C kube -p 2 -trimpath -ldflags "-s -w -buildid= -X github.com/gpuledger/gpuledger/internal/version.Version=$VERSION" \
    -o "$tree/$program" ./cmd/kubectl-gpuledger
  install -m 644 LICENSE "$tree/LICENSE"
  install -m 755 "packaging/$inspect" "$tree/$inspect"
  tarball "$out/$file.tar.gz" "$tree" LICENSE "$program" "$inspect"
  "$work/sbom" -name kubectl-gpuledger -version "$VERSION" -time "$SOURCE_DATE_EPOCH" -root "$tree" >"$out/$file.cdx.json"
  cat <<EOF
    - selector:
        matchLabels: {os: $1, arch: $2}
      uri: $url/$file.tar.gz
      sha256: $(sha256sum "$out/$file.tar.gz" | cut -d ' ' -f 1)
      bin: $program
EOF
}

step "kubectl gpuledger for $platforms"
{
  cat <<EOF
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: gpuledger
spec:
  version: v$semantic
  homepage: https://github.com/gpuledger/gpuledger
  shortDescription: Show the GPUs of a cluster and the grants on them
  description: |
    Shows the GPUs of the nodes that gpuledger guards, what pods have of them,
    and why a pod has none.
  platforms:
EOF
  for platform in $platforms; do plugin "${platform%/*}" "${platform#*/}"; done
} >"$out/krew.yaml"

step "images for both architectures, and the chart, named for $registry"
for name in setup kube; do
  "$work/image" join -name "$registry/$name:$tag" -time "$SOURCE_DATE_EPOCH" -out "$out/gpuledger-${name}_$VERSION.oci.tar" "$out/gpuledger-${name}_${VERSION}_"{amd64,arm64}.tar
done
cp -r kube/manifests/helm "$work/gpuledger"
sed -i "s/^version: .*/version: $semantic/; s/^appVersion: .*/appVersion: \"$tag\"/" "$work/gpuledger/Chart.yaml"
sed -Ei "s|(repository: )gpuledger.dev/|\1$registry/|; s|^( +tag: )latest\$|\1$tag|" "$work/gpuledger/values.yaml"
[ -z "${RELEASE_REGISTRY:-}" ] || sed -Ei 's|^( +pullPolicy: )Never$|\1IfNotPresent|' "$work/gpuledger/values.yaml"
chmod -R u=rwX,go=rX "$work/gpuledger"
chart=$out/gpuledger-$semantic.tgz
tarball "$chart" "$work" gpuledger
"$work/image" chart -name "$registry/charts/gpuledger:$tag" -time "$SOURCE_DATE_EPOCH" -out "$out/gpuledger-chart_$VERSION.oci.tar" "$chart"

# hashes DIRECTORY: the lines of an apt Release file about the files below.
hashes() {
  (cd "$1" && find main -type f | sort | while read -r file; do
    printf ' %s %s %s\n' "$(sha256sum "$file" | cut -d ' ' -f 1)" "$(stat -c %s "$file")" "$file"
  done)
}

step "the apt and the dnf repository"
suite=$out/apt/dists/stable
mkdir -p "$out/apt/pool" "$out/rpm"
cp -p "$out"/*.deb "$out/apt/pool"
cp -p "$out"/*.rpm "$out/rpm"
for arch in amd64 arm64; do
  mkdir -p "$suite/main/binary-$arch"
  (cd "$out/apt" && dpkg-scanpackages --multiversion --arch "$arch" pool 2>/dev/null) >"$suite/main/binary-$arch/Packages"
  gzip -9nk "$suite/main/binary-$arch/Packages"
done
cat >"$suite/Release" <<EOF
Origin: gpuledger
Label: gpuledger
Suite: stable
Codename: stable
Date: $(date -u -R -d "@$SOURCE_DATE_EPOCH")
Architectures: amd64 arm64
Components: main
SHA256:
$(hashes "$suite")
EOF
touch -d "@$SOURCE_DATE_EPOCH" "$out/rpm"/*.rpm
createrepo_c --quiet --no-database --revision "$SOURCE_DATE_EPOCH" --set-timestamp-to-revision "$out/rpm"

# notes: what the changelog says about this version, or about what comes after the last one.
notes() {
  printf '# gpuledger %s\n' "$semantic"
  awk -v version="## $semantic" '/^## / { on = $0 == version || index($0, version " ") == 1 } on && !/^## /' CHANGELOG.md >"$work/notes"
  [ -s "$work/notes" ] || awk '/^## / { on = $0 == "## Unreleased" } on && !/^## /' CHANGELOG.md >"$work/notes"
  cat "$work/notes"
}
notes >"$out/RELEASE-NOTES.md"

(cd "$out" && find . -maxdepth 1 -type f -printf '%P\n' | sort | xargs -d '\n' sha256sum --) >"$work/SHA256SUMS"
mv "$work/SHA256SUMS" "$out/SHA256SUMS"
if [ -z "$key" ]; then
  step "not signed: RELEASE_KEY names no key"
else
  step "signatures by $key"
  gpg --batch --yes --armor --export "$key" >"$out/gpuledger.asc"
  gpg --batch --yes --local-user "$key" --armor --detach-sign "$out/SHA256SUMS"
  gpg --batch --yes --local-user "$key" --clear-sign -o "$suite/InRelease" "$suite/Release"
  gpg --batch --yes --local-user "$key" --armor --detach-sign -o "$suite/Release.gpg" "$suite/Release"
  gpg --batch --yes --local-user "$key" --armor --detach-sign "$out/rpm/repodata/repomd.xml"
fi
step "$(find "$out" -type f | wc -l) files in $out"
