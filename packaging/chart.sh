#!/bin/bash
# packaging/chart.sh: tests the chart with the real Helm on a real control plane (etcd, API server,
# controllers, scheduler): install, enforce, a refused and an interrupted uninstall, the way back, and
# the uninstall. The nodes are objects only. In place of their kubelets a loop makes pods ready, and
# runs the program of the uninstall's Job with the account of that Job. packaging/setup.sh tests what
# the set-up does on a node.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin LC_ALL=C

if [ -z "${GPULEDGER_TEST_PRIVATE:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "packaging/chart.sh: it takes root" >&2; exit 1; }
  test/engines/build.sh etcd kubernetes
  GPULEDGER_TEST_PRIVATE=1 exec unshare --net --mount --pid --fork --kill-child --mount-proc --propagation private packaging/chart.sh
fi

work=$(mktemp -d)
# clean: a kubectl of a loop that was killed can still write to its cache for a moment.
clean() {
  { jobs -p | xargs -r kill -KILL && wait; } 2>/dev/null || true
  rm -rf "$work" 2>/dev/null || { sleep 2; rm -rf "$work"; }
}
trap clean EXIT
trap 'exit 130' INT TERM HUP
step() { printf '== %3d s: %s\n' "$SECONDS" "$*"; }
fail() { echo "FAIL: $*" >&2; tail -n 3 "$work"/*.log >&2; exit 1; }
eventually() { # WHAT COMMAND...
  local i
  for ((i = 0; i < 240; i++)); do ! "${@:2}" >/dev/null 2>&1 || return 0; sleep 0.5; done
  fail "not within two minutes: $1"
}
says() { grep -qF -- "$1" "$work/said" || { cat "$work/said" >&2; fail "it does not say: $1"; }; }

step "the programs"
go build -C packaging/tools/helm -p 2 -o "$work/helm" tool
CGO_ENABLED=0 go build -C kube -p 2 -o "$work/gpuledger-kube" ./cmd/gpuledger-kube
PATH=$work:$PWD/.cache/engines/kubernetes:$PWD/.cache/engines/etcd:$PATH
chart=$PWD/kube/manifests/helm

step "the control plane"
ip link set lo up
ip link add node0 type bridge
ip addr add 10.77.0.1/24 dev node0
ip link set node0 up
ip route add default via 10.77.0.254
openssl genrsa -out "$work/sa.key" 2048 2>/dev/null
echo 'admin,admin,admin,"system:masters"' >"$work/tokens.csv"
kubeconfig() { echo "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: 'https://127.0.0.1:6443', insecure-skip-tls-verify: true}}], users: [{name: u, user: {token: $1}}], contexts: [{name: c, context: {cluster: c, user: u}}], current-context: c}"; }
kubeconfig admin >"$work/admin.conf"
export KUBECONFIG=$work/admin.conf HOME=$work
etcd --data-dir "$work/etcd" --log-level=error >"$work/etcd.log" 2>&1 &
kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --endpoint-reconciler-type=none \
  --cert-dir="$work/certs" --token-auth-file="$work/tokens.csv" --anonymous-auth=false --authorization-mode=RBAC --disable-admission-plugins=ServiceAccount \
  --allow-privileged=true --service-account-issuer=https://127.0.0.1:6443 --service-account-key-file="$work/sa.key" \
  --service-account-signing-key-file="$work/sa.key" --service-cluster-ip-range=10.96.0.0/24 >"$work/api.log" 2>&1 &
eventually "the API server is ready" kubectl get --raw /readyz
kube-controller-manager --kubeconfig="$KUBECONFIG" --bind-address=127.0.0.1 --cert-dir="$work/certs" --leader-elect=false \
  --service-account-private-key-file="$work/sa.key" >"$work/controllers.log" 2>&1 &
kube-scheduler --kubeconfig="$KUBECONFIG" --bind-address=127.0.0.1 --cert-dir="$work/certs" --leader-elect=false >"$work/scheduler.log" 2>&1 &

# node NAME LABELS: makes a node object that is ready.
node() {
  printf '# \n{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {%s}}}' "$1" "$2" | kubectl create -f - >/dev/null
  kubectl patch node "$1" --subresource=status --type=merge -p '{"status": {"capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"}, "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"},
    "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}' >/dev/null
}
leases() {
  local n
  while true; do
    for n in a b; do
      printf '# \n{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: %s, namespace: kube-node-lease}, spec: {holderIdentity: %s, leaseDurationSeconds: 40, renewTime: "%s"}}' \
        "$n" "$n" "$(date -u +%FT%T.000000Z)" | kubectl apply -f - >/dev/null 2>&1 || true
    done
    sleep 5
  done
}
# job NAME: runs the program of a Job's pod as its account, and makes the pod end as the program ends.
job() {
  local args phase=Succeeded status=0
  kubeconfig "$(kubectl -n gpuledger-system create token gpuledger-uninstall)" >"$work/job.conf"
  mapfile -t args < <(kubectl -n gpuledger-system get pod "$1" -o json | jq -r '.spec.containers[0].args[]')
  KUBECONFIG=$work/job.conf POD_NAMESPACE=gpuledger-system gpuledger-kube "${args[@]}" >"$work/job.log" 2>&1 || status=$? phase=Failed
  kubectl -n gpuledger-system patch pod "$1" --subresource=status --type=merge -p '{"status": {"phase": "'$phase'", "containerStatuses": [{"name": "uninstall", "image": "i", "imageID": "i",
    "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": '$status'}}}]}}' >/dev/null || true
}
# kubelets: what is bound to a node becomes ready, except on the node in $work/down; what is deleted goes.
kubelets() {
  local name node deleted phase app ready
  while sleep 0.5; do
    while IFS=$'\t' read -r name node deleted phase app ready; do
      if [ "$deleted" != - ]; then
        kubectl -n gpuledger-system delete pod "$name" --force --grace-period=0 >/dev/null 2>&1 || true
      elif grep -qx "$node" "$work/down"; then
        continue
      elif [ "$app" = gpuledger-uninstall ]; then
        [ "$phase" = Pending ] && [ ! -e "$work/ran-$name" ] || continue
        touch "$work/ran-$name"
        job "$name" &
      elif [ "$ready" = 0 ]; then
        kubectl -n gpuledger-system patch pod "$name" --subresource=status --type=merge -p '{"status": {"phase": "Running", "podIP": "10.1.1.1",
          "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}' >/dev/null 2>&1 || true
      fi
    done < <(kubectl -n gpuledger-system get pods -o json 2>/dev/null | jq -r '.items[] | select(.spec.nodeName) | [.metadata.name, .spec.nodeName, (.metadata.deletionTimestamp // "-"),
      (.status.phase // ""), (.metadata.labels["app.kubernetes.io/name"] // "-"), ((.status.conditions // []) | map(select(.type == "Ready" and .status == "True")) | length)] | @tsv')
  done
}
of() { kubectl -n gpuledger-system get "daemonset/$1" -o "jsonpath=$2"; }
# helm COMMAND ARG...: $work/said has what it says.
helm() { command helm "$1" -n gpuledger-system gpuledger "${@:2}" >"$work/said" 2>&1; }
: >"$work/down"
leases &
node a 'gpuledger.dev/node: shared'
node b 'gpuledger.dev/node: shared, gpu: h100'
kubelets &

step "helm install: report mode, each node its kind's set-up"
kubectl create namespace gpuledger-system >/dev/null
helm install "$chart" --set 'kinds[0].name=h100,kinds[0].nodeSelector.gpu=h100,uninstall.timeout=30s' --wait --timeout 90s || { cat "$work/said" >&2; fail "helm install"; }
for set in gpuledger-dra:2 gpuledger-setup:1 gpuledger-setup-h100:1; do
  [ "$(of "${set%:*}" '{.status.numberAvailable}')" = "${set#*:}" ] || fail "$set"
done
mode() { kubectl -n gpuledger-system get configmap gpuledger-config -o "jsonpath={.data.$1\.toml}" | sed -n 's/^  mode = //p'; }
[ "$(mode default) $(mode h100)" = '"report" "report"' ] || fail "it does not begin in report mode"

step "the second command enforces, but not beside NVIDIA's plugin"
kubectl patch node a --subresource=status --type=merge -p '{"status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}}}' >/dev/null
! helm upgrade "$chart" --reset-then-reuse-values --set policy.mode=enforce || fail "it enforces beside NVIDIA's plugin"
says "refused to enforce: NVIDIA's device plugin or DRA driver hands out GPUs of these nodes, too, and its pods would be refused there: a (nvidia.com/gpu)."
kubectl patch node a --subresource=status --type=json -p '[{"op": "remove", "path": "/status/allocatable/nvidia.com~1gpu"}, {"op": "remove", "path": "/status/capacity/nvidia.com~1gpu"}]' >/dev/null
helm upgrade "$chart" --reset-then-reuse-values --set policy.mode=enforce || { cat "$work/said" >&2; fail "helm upgrade"; }
[ "$(mode default) $(mode h100)" = '"enforce" "enforce"' ] || fail "it does not enforce"
revision=$(command helm history -n gpuledger-system gpuledger -o json | jq 'map(select(.status == "deployed"))[0].revision')

step "an uninstall while a claim has GPUs changes nothing"
kubectl create namespace team >/dev/null
printf '# \n{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: share, namespace: team}, spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: limit.gpuledger.dev}}]}}}' | kubectl create -f - >/dev/null
kubectl -n team patch resourceclaim share --subresource=status --type=merge -p '{"status": {"allocation": {"devices": {"results": [{"request": "gpu", "driver": "gpuledger.dev", "pool": "a", "device": "d"}]}}}}' >/dev/null
! helm uninstall --timeout 90s || fail "it uninstalls"
cp "$work/job.log" "$work/said"
says "refused: these have GPUs, which only the agent can give back: claim team/share"
[ "$(of gpuledger-dra '{.status.numberAvailable}') $(of gpuledger-setup '{.spec.template.spec.initContainers[0].args[0]}')" = "2 install" ] || fail "something has changed"
kubectl -n team delete resourceclaim share --wait=false >/dev/null

step "an uninstall with a node that does not come names it"
echo b >"$work/down"
kubectl taint node b down=:NoExecute >/dev/null # else the Job's own pod may wait there
! helm uninstall --timeout 90s || fail "it uninstalls"
cp "$work/job.log" "$work/said"
says "cannot wait any longer for the nodes (gpuledger-setup-h100): gpuledger-setup-h100-"
says " on node b."
[ "$(of gpuledger-dra '{.status.desiredNumberScheduled}') $(of gpuledger-setup '{.spec.template.spec.initContainers[0].args}')" = '0 ["remove","--engine=auto"]' ] || fail "it has not gone as far as it could"

step "the way back"
: >"$work/down"
kubectl taint node b down- >/dev/null
helm rollback "$revision" --wait --timeout 90s || { cat "$work/said" >&2; fail "helm rollback"; }
[ "$(of gpuledger-dra '{.status.numberAvailable}') $(of gpuledger-setup '{.spec.template.spec.initContainers[0].args[0]}') $(of gpuledger-setup '{.spec.template.spec.containers[0].readinessProbe.exec.command[1]}') $(mode default)" = '2 install ready "enforce"' ] || fail "it is not as it was"

step "the uninstall"
helm uninstall --timeout 90s || { cat "$work/said" "$work/job.log" >&2; fail "helm uninstall"; }
left() { kubectl get daemonset,job,configmap,serviceaccount,role,rolebinding,networkpolicy -n gpuledger-system -o name && kubectl get clusterrole,clusterrolebinding,deviceclass,runtimeclass,validatingadmissionpolicy,validatingadmissionpolicybinding -o name; }
! left | grep gpuledger || fail "this is left"
step "from the chart and the set-up of the last release"
last=46e0f1b # the last version whose chart did not set up the nodes
if git cat-file -e "$last^{commit}" 2>/dev/null; then
  mkdir "$work/last"
  git archive "$last" kube/manifests packaging/kubernetes | tar -x -C "$work/last"
  kubectl apply -f "$work/last/packaging/kubernetes/install.yaml" >"$work/said" 2>&1 || { cat "$work/said" >&2; fail "the set-up of the last release"; }
  helm install "$work/last/kube/manifests/helm" --set runtimeClass=false --wait --timeout 90s || { cat "$work/said" >&2; fail "the chart of the last release"; }
  kubectl -n gpuledger-system delete daemonset gpuledger-setup >/dev/null
  helm upgrade "$chart" --reset-then-reuse-values --take-ownership --set runtimeClass=true --wait --timeout 90s || { cat "$work/said" >&2; fail "helm upgrade from the last release"; }
  [ "$(of gpuledger-dra '{.status.numberAvailable}') $(of gpuledger-setup '{.spec.template.spec.containers[*].name}') $(mode default)" = '2 config "report"' ] || fail "the upgrade"
  helm uninstall --timeout 90s || { cat "$work/said" "$work/job.log" >&2; fail "helm uninstall after the upgrade"; }
  ! left | grep gpuledger || fail "this is left after the upgrade"
else
  echo "SKIPPED: this clone does not have $last (a shallow clone)"
fi
step "all of it"
