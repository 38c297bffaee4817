#!/bin/bash
# run.sh [ENGINE[,ENGINE...]] [GO-TEST-FLAG...]
# Runs the end-to-end tests on these engines (default: all), building those that Debian does not have. ENGINE is a name of
# the table below or its beginning: containerd2, containerd1.7, containerd1.6, containerd, crio, podman, docker, kubernetes.
# STORM=300 creates and deletes so many pods while the cluster's parts are killed (default: 24); OLD_KUBE=FILE is an older
# gpuledger-kube to update from (default: the same). KUBERNETES=1.35 takes kubernetes-1.35 of test/engines/build.sh, and
# KUBERNETES_GATES=GATE=true,... sets feature gates of all its programs.
# E2E_ENTRIES=wrapper,configure,... names the entry points (default: all that an engine has, but for critest, which is
# cri-tools' validation of containerd2 and containerd1.7).
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin

# name: what test/engines/build.sh must build for it. The names are those of engine_test.go.
table='
containerd2    runc containerd-2 crictl
containerd1.7  containerd-1.7 crictl
containerd1.6  crictl
crio           runc crio crictl
podman-crun    devcontainers
podman-runc    devcontainers
docker-20.10   compose devcontainers
docker-moby2   runc containerd-2 dockerd compose
kubernetes-containerd  runc containerd-2 crictl etcd kubernetes
kubernetes-crio        runc crio crictl etcd kubernetes
'

names=() builds=()
IFS=, read -ra wanted <<<"${1:-containerd,crio,podman,docker,kubernetes}"
for want in "${wanted[@]}"; do
  found=
  while read -r name needs; do
    [[ -n $name && $name == "$want"* ]] || continue
    found=1 names+=("$name")
    read -ra needs <<<"$needs"
    builds+=("${needs[@]}")
  done <<<"$table"
  [ -n "$found" ] || { echo "run.sh: there is no engine $want; there are: $(awk 'NF { print $1 }' <<<"$table" | xargs)" >&2; exit 2; }
done
skipped='compose devcontainers' # only one entry point has them
case ,${E2E_ENTRIES:-asking}, in *,asking,*) skipped= ;; esac
mapfile -t builds < <(printf '%s\n' "${builds[@]}" | awk -v skipped=" $skipped " 'NF && !seen[$0]++ && !index(skipped, " " $0 " ")')
[[ ,${E2E_ENTRIES:-}, != *,critest,* ]] || builds+=(critest)
case " ${names[*]} " in *" kubernetes-"*) [ -z "${KUBERNETES:-}" ] || builds+=("kubernetes-$KUBERNETES") ;; esac
[ ${#builds[@]} = 0 ] || test/engines/build.sh "${builds[@]}"
for program in gpuledger gpuledger-runtime gpuledger-hook gpuledgerd; do
  [ -x bin/$program ] || { echo "run.sh: bin/$program is not there; run make build first" >&2; exit 1; }
done
case " ${names[*]} " in
  *" kubernetes-"*) [ -x bin/gpuledger-kube ] || { echo "run.sh: bin/gpuledger-kube is not there; run make kube first" >&2; exit 1; } ;;
esac
cd test/e2e # go test shows the table of a run without failures only where no package is named
E2E=$(IFS=,; echo "${names[*]}") exec go test -p 2 -tags e2e -count=1 -timeout 7h "${@:2}" # whatever waits has a limit of its own
