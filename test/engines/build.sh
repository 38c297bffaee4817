#!/bin/bash
# build.sh NAME...       build engines that Debian does not have, into .cache/engines/NAME/; what is built already stays
# build.sh --list        the names and versions
# build.sh --pin NAME    write NAME/go.mod and NAME/go.sum anew from the table below; commit the result
#
# A module npm:NAME is a package of npm's, with its own package-lock.json here, and needs node and npm.
#
# Each engine is a module of its own here, with its main packages as tools. As main modules they may have `replace` and
# `exclude`, for want of which `go install engine@version` refuses most of them; none moves another's requirements, or
# gpuledger's; and everything is checked against the go.sum that is committed.
set -euo pipefail
cd "$(dirname "$0")"
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin
cache=$(realpath -m "${ENGINES_CACHE:-../../.cache/engines}")
tries=3

# CRI-O's v1.34.0 is an older commit for Go's proxy than in CRI-O's repository: docs/suites.md.
#        name           module                              version          commands (below the module)                           build tags
table='
         runc           github.com/opencontainers/runc      v1.5.2           .                                                     seccomp
         runc-suite     github.com/opencontainers/runc      v1.5.2           tests/cmd/recvtty,tests/cmd/sd-helper,tests/cmd/seccompagent,tests/cmd/remap-rootfs,tests/cmd/fs-idmap,tests/cmd/pidfd-kill,tests/cmd/key_label seccomp
         runc-suite-1.1 github.com/opencontainers/runc      v1.1.5           contrib/cmd/recvtty,contrib/cmd/sd-helper,contrib/cmd/seccompagent seccomp
         containerd-2   github.com/containerd/containerd/v2 v2.4.2           cmd/containerd,cmd/containerd-shim-runc-v2,cmd/ctr    -
         containerd-1.7 github.com/containerd/containerd    v1.7.35          cmd/containerd,cmd/containerd-shim-runc-v2,cmd/ctr    -
         crictl         sigs.k8s.io/cri-tools               v1.36.0          cmd/crictl                                            -
         critest        sigs.k8s.io/cri-tools               v1.36.0          own                                                   -
         crio           github.com/cri-o/cri-o              v1.34.0          cmd/crio                                              containers_image_openpgp,exclude_graphdriver_btrfs,btrfs_noversion,seccomp
         crio-suite     github.com/cri-o/cri-o              v1.34.0          test/copyimg,test/checkseccomp                                     containers_image_openpgp,exclude_graphdriver_btrfs,btrfs_noversion,seccomp
         dockerd        github.com/moby/moby/v2             v2.0.0-beta.24   cmd/dockerd                                           -
         compose        github.com/docker/compose/v2        v2.40.3          cmd                                                   -
         devcontainers  npm:@devcontainers/cli              0.80.3           -                                                     -
         etcd           go.etcd.io/etcd/server/v3           v3.6.16          .                                                     -
         kubernetes     k8s.io/kubernetes                   v1.36.3          cmd/kubelet,cmd/kube-apiserver,cmd/kube-controller-manager,cmd/kube-scheduler,cmd/kubectl -
         kubernetes-1.36.0 k8s.io/kubernetes                   v1.36.0          cmd/kubelet,cmd/kube-apiserver,cmd/kube-controller-manager,cmd/kube-scheduler -
         kubernetes-1.35 k8s.io/kubernetes                   v1.35.8          cmd/kubelet,cmd/kube-apiserver,cmd/kube-controller-manager,cmd/kube-scheduler -
         kubernetes-1.34 k8s.io/kubernetes                   v1.34.10         cmd/kubelet,cmd/kube-apiserver,cmd/kube-controller-manager,cmd/kube-scheduler -
         kubernetes-1.30 k8s.io/kubernetes                   v1.30.14         cmd/kubelet,cmd/kube-apiserver,cmd/kube-controller-manager,cmd/kube-scheduler -
'

say() { echo "engines: $*" >&2; }
die() { say "$*"; exit 1; }

# row NAME: sets name module version commands tags packages
row() {
  local command
  read -r name module version commands tags < <(awk -v name="$1" '$1 == name' <<<"$table") || die "cannot build $1: there is no engine of that name; known are $(awk 'NF { printf "%s ", $1 }' <<<"$table")"
  [ "$tags" != - ] || tags=
  packages=()
  for command in ${commands//,/ }; do
    packages+=("$module${command:+/$command}")
  done
  packages=("${packages[@]%/.}")
}

# stamp: what the result depends on.
stamp() { (echo "$module $version $commands $tags $(go env GOVERSION GOARCH)" && cat go.mod go.sum && find . -name '*.go' -exec cat {} + && declare -f build) | sha256sum | cut -d ' ' -f 1; }

# fetch: everything the build needs, so that the compiler never waits for a server. The only step that a network can fail.
fetch() {
  local try log
  log=$(mktemp)
  for ((try = 1; try <= tries; try++)); do
    if go list -deps -tags "$tags" tool >/dev/null 2>"$log"; then
      rm -f "$log"
      return
    fi
    say "try $try of $tries to fetch the modules of $name $version failed: $(tail -n 1 "$log")"
    [ "$try" = "$tries" ] || sleep $((try * 5))
  done
  tail -n 20 "$log" >&2
  rm -f "$log"
  die "cannot fetch the modules of $name $version from GOPROXY=$(go env GOPROXY); the tests with it cannot run without them"
}

# build: one engine into a new folder, which then takes the place of the old one.
build() (
  row "$1"
  cd "$name"
  wanted=$(stamp)
  out=$cache/$name
  [ "$(cat "$out/stamp" 2>/dev/null)" != "$wanted" ] || exit 0
  say "building $name $version, once; this can take some minutes"
  began=$SECONDS
  fetch
  rm -rf "$out.new"
  mkdir -p "$out.new"
  flags='-s -w'
  [[ $name != kubernetes* ]] || flags+=" -X k8s.io/component-base/version.gitVersion=$version" # else it has no version at all
  go build -p 2 -trimpath -buildvcs=false -tags "$tags" -ldflags "$flags" -o "$out.new/" tool || die "cannot build $name $version"
  [ "$name" != etcd ] || mv "$out.new/server" "$out.new/etcd" # go names it after its import path
  if [ "$name" = crio ]; then # a helper of its own, in C
    gcc -O2 -o "$out.new/pinns" "$(go list -m -f '{{.Dir}}' "$module")"/pinns/src/*.c || die "cannot build pinns of $name $version"
  fi
  echo "$wanted" >"$out.new/stamp"
  rm -rf "$out"
  mv "$out.new" "$out"
  say "built $name $version in $((SECONDS - began)) s"
)

# build_npm: a package of npm's and what it needs, without running their scripts.
build_npm() (
  cd "$1"
  wanted=$( (cat package.json package-lock.json && declare -f build_npm) | sha256sum | cut -d ' ' -f 1)
  out=$cache/$1
  [ "$(cat "$out/stamp" 2>/dev/null)" != "$wanted" ] || exit 0
  say "installing $1 $version, once"
  rm -rf "$out.new"
  mkdir -p "$out.new"
  cp package.json package-lock.json "$out.new/"
  npm ci --prefix "$out.new" --ignore-scripts --no-audit --no-fund >"$out.new/log" 2>&1 || {
    tail -n 20 "$out.new/log" >&2
    die "cannot install $1 $version; the tests with it cannot run without it"
  }
  echo "$wanted" >"$out.new/stamp"
  rm -rf "$out"
  mv "$out.new" "$out"
)

# pin: a go.mod that says what the engine's own says, with its commands as tools. Nothing is tidied: that would ask for
# the tests' requirements of every requirement.
pin() (
  row "$1"
  mkdir -p "$name"
  cd "$name"
  rm -f go.mod go.sum
  if [[ $module = npm:* ]]; then
    printf '{"private": true, "dependencies": {"%s": "%s"}}\n' "${module#npm:}" "$version" >package.json
    npm install --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts --no-audit --no-fund
    exit
  fi
  info=$(go mod download -json "$module@$version")
  theirs=$(go mod edit -json "$(jq -r .GoMod <<<"$info")")
  go mod init "github.com/gpuledger/gpuledger/test/engines/$name"
  go mod edit -go="$(jq -r .Go <<<"$theirs")" # decides the defaults of GODEBUG, too
  # Kubernetes replaces its libraries by directories of its own; they are published as v0.X.Y.
  jq -r --arg staging "v0.${version#v1.}" '(.Exclude[]? | "-exclude=\(.Path)@\(.Version)"),
    (.Replace[]? | select(.New.Version) | "-replace=\(.Old.Path)\(if .Old.Version then "@" + .Old.Version else "" end)=\(.New.Path)@\(.New.Version)"),
    (.Replace[]? | select(.New.Path | startswith("./staging/")) | "-replace=\(.Old.Path)=\(.Old.Path)@\($staging)"),
    (.Godebug[]? | "-godebug=\(.Key)=\(.Value)")' <<<"$theirs" | xargs -r go mod edit
  if [ "$commands" = own ]; then # it has no command for go get: the one that is here takes its packages
    install -m 644 "$(jq -r .Dir <<<"$info")/go.sum" go.sum
    go mod edit -require="$module@$version" -tool="github.com/gpuledger/gpuledger/test/engines/$name"
    go mod tidy
  elif ! go get -tool "${packages[@]/%/@$version}"; then
    # The checksum database does not know every module. The engine's own zip is verified, so its go.sum is as good.
    install -m 644 "$(jq -r .Dir <<<"$info")/go.sum" go.sum
    go get -tool "${packages[@]/%/@$version}"
  fi
)

case ${1:-} in
  '') sed -n 2,4p "$0" >&2; exit 2 ;;
  --list) awk 'NF { print $1, $3 }' <<<"$table" ;;
  --pin) pin "${2:?which engine}" ;;
  *)
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9 # two runs of make never build the same engine at once
    for engine; do
      row "$engine"
      if [[ $module = npm:* ]]; then build_npm "$engine" 9>&-; else build "$engine" 9>&-; fi
    done ;;
esac
