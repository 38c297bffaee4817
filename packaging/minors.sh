#!/bin/bash
# packaging/minors.sh [MINOR...]: helm lint and helm template of the chart, with the real Helm, for each
# minor version of Kubernetes that Chart.yaml allows (26 to 37 unless given), with several values. What
# is rendered is read with that version's own API types: an unknown kind or field is an error. Or the
# chart has to refuse the version with a sentence. The further validation of an API server, of names,
# selectors and expressions, is that of 1.36 (packaging/tools/manifests).
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/go/bin LC_ALL=C
minors=("$@")
[ $# != 0 ] || mapfile -t minors < <(seq 26 37)
chart=kube/manifests/helm cache=$PWD/.cache/minors

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -C packaging/tools/helm -p 2 -o "$work/helm" tool
cat >"$work/many.yaml" <<'VALUES'
policy: {exempt: [{namespace: gpu-operator}], reserve: 1GiB}
config: {audit: {max_size: 64MiB}}
kinds: [{name: h100, nodeSelector: {gpu: h100}, config: {pool: [{gpus: ["0"], modes: [limit]}]}}]
metrics: {enabled: true}
resourceQuota: 300
VALUES

# reader MINOR: builds packaging/tools/minors with that version's types, once. Go checks what it
# fetches by its checksum database.
reader() {
  local dir=$cache/1.$1 stamp
  stamp=$(cat packaging/tools/minors/*.go | sha256sum)
  [ "$(cat "$dir/stamp" 2>/dev/null)" != "$stamp" ] || return 0
  mkdir -p "$dir"
  cp packaging/tools/minors/*.go "$dir"
  (
    cd "$dir"
    rm -f go.mod go.sum
    go mod init minors && go get "k8s.io/api@v0.$1.0" "k8s.io/apimachinery@v0.$1.0" && { [ "$1" -ge 34 ] || rm dra.go; } &&
      go mod tidy && go build -p 2 -tags dra -o reader .
  ) >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
  echo "$stamp" >"$dir/stamp"
}

# render MINOR VALUE...: what `helm install` would send to such a cluster, with the agent that it would
# choose there unless VALUE... has one. helm template has no cluster to choose by.
render() {
  local api=() agent=device-plugin
  [ "$1" -lt 34 ] || api=(--api-versions resource.k8s.io/v1)
  [ "$1" -lt 36 ] || agent=dra
  "$work/helm" template gpuledger "$chart" -n gpuledger-system --kube-version "v1.$1.2" "${api[@]}" --set "agent=$agent" "${@:2}" 2>"$work/said"
}

failed=0
bad() { echo "FAIL: 1.$*" >&2; cat "$work/said" >&2; failed=1; }
# has MINOR COUNT VALUE...: the chart renders, and the version has all of it.
has() {
  if ! render "$1" "${@:2}" >"$work/out" || ! "$cache/1.$1/reader" <"$work/out" >"$work/said"; then
    bad "$1 ${*:2}"
  else
    printf '1.%s %s: %s\n' "$1" "${*:2}" "$(cat "$work/said")"
  fi
}
# refuses MINOR SENTENCE VALUE...
refuses() {
  if render "$1" "${@:3}" >/dev/null || ! grep -qF -- "$2" "$work/said"; then
    bad "$1 ${*:3} is not refused"
  else
    echo "1.$1 ${*:3}: refused"
  fi
}

for minor in "${minors[@]}"; do
  reader "$minor"
  "$work/helm" lint --strict "$chart" --set "agent=$([ "$minor" -ge 36 ] && echo dra || echo device-plugin)" --kube-version "v1.$minor.2" >"$work/said" 2>&1 || bad "$minor helm lint"
  has "$minor"
  has "$minor" --values "$work/many.yaml"
  has "$minor" --set agent=device-plugin,policy.mode=enforce --values "$work/many.yaml"
  if [ "$minor" -ge 35 ]; then has "$minor" --set agent=dra; else refuses "$minor" "agent dra needs Kubernetes" --set agent=dra; fi
  if [ "$minor" -ge 30 ]; then has "$minor" --set nvidia.policy=true; else refuses "$minor" "nvidia.policy needs Kubernetes 1.30 or later" --set nvidia.policy=true; fi
  placed=agent=device-plugin,scheduler.enabled=true
  if [ "$minor" -ge 30 ]; then has "$minor" --set $placed; else refuses "$minor" "scheduler.enabled needs Kubernetes 1.30 or later" --set $placed; fi
done
refuses 25 "which is incompatible with Kubernetes v1.25.2"
exit $failed
