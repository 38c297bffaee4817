#!/bin/bash
# packaging/quickstart.sh [PART...]: types docs/kubernetes-quickstart.md into a real cluster: a booted
# Debian 12 with etcd, API server, controller manager, scheduler, kubelet and containerd. The images
# are there before, so nothing is pulled. PART is
#   page      what the page shows, and back
#   upgrade   the objects of the last release, their upgrade, a reboot in its middle, and back
#   scheduler the chart's scheduler and webhook as pods, beside the device plugin: docs/kubernetes-scheduler.md
# A pod of somebody else runs all the time, and in the end the node is as it was. A boot has new
# namespaces and an empty /run, but the machine's boot id: nothing here tests that this one changes.
# The machine has no GPU; the script installs the stand-in driver of the tests.
# shellcheck disable=SC2015,SC2154 # fail ends it; cluster.sh's names
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin LC_ALL=C

if [ -z "${GPULEDGER_TEST_PRIVATE:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "packaging/quickstart.sh: it takes root" >&2; exit 1; }
  test/engines/build.sh etcd kubernetes containerd-2 runc
  GPULEDGER_TEST_PRIVATE=1 exec unshare --mount --pid --fork --kill-child --mount-proc --propagation private "packaging/quickstart.sh" "$@"
fi

work=$(mktemp -d)
root=$work/root
# shellcheck disable=SC2034 # boot's
group=gpuledger-quickstart-${work##*.}
. packaging/booted.sh
. packaging/standin.sh
. packaging/cluster.sh
clean() {
  [ -z "${booted:-}" ] || shut
  ! mountpoint -q "$root" || umount -R "$root" 2>/dev/null || umount -R -l "$root"
  rm -rf --one-file-system "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM HUP
step() { printf '== %3d s: %s\n' "$SECONDS" "$*"; }

# --- images

# programs SOURCE TO: builds what the images of a version have.
programs() {
  local name to front=()
  mkdir -p "$2"
  to=$(realpath "$2")
  go build -C "$1" -p 2 -trimpath -o "$to/gpuledger" ./cmd/gpuledger
  for name in gpuledger-hook gpuledgerd gpuledger-setup; do
    CGO_ENABLED=0 go build -C "$1" -p 2 -trimpath -ldflags '-s -w' -o "$to/$name" ./cmd/$name
  done
  if [ -d "$1/front" ]; then # the last release has none
    (cd "$1" && front/build.sh "$(go env GOARCH)" "cmd/gpuledger-runtime/front_linux_$(go env GOARCH).s") || fail "the front"
    front=(-tags front -ldflags '-s -w -E gpuledger_front')
  fi
  CGO_ENABLED=0 go build -C "$1" -p 2 -trimpath -ldflags '-s -w' "${front[@]}" -o "$to/gpuledger-runtime" ./cmd/gpuledger-runtime
  CGO_ENABLED=0 go build -C "$1/kube" -p 2 -trimpath -ldflags '-s -w' -o "$to/gpuledger-kube" ./cmd/gpuledger-kube
  "$1/shim/build.sh" "$to/shim" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the shim"; }
}

# images SOURCE PROGRAMS VERSION: imports the images of a version, with the names that they have.
images() {
  local tree=$work/tree name
  rm -rf "$tree"
  mkdir -p "$tree"/{host,node/usr/bin,node/usr/lib/systemd/system,node/usr/lib/udev/rules.d,node/etc/gpuledger,"node/usr/lib/gpuledger/shim-$3"}
  cp "$2/gpuledger-setup" "$tree/"
  cp "$2"/{gpuledger,gpuledger-runtime,gpuledger-hook,gpuledgerd} "$tree/node/usr/bin/"
  for name in containerd crio docker podman; do ln -s gpuledger-runtime "$tree/node/usr/bin/gpuledger-runtime.$name"; done
  cp "$1"/packaging/systemd/* "$tree/node/usr/lib/systemd/system/"
  cp "$1/packaging/90-gpuledger.rules" "$tree/node/usr/lib/udev/rules.d/"
  cp "$2"/shim/* "$tree/node/usr/lib/gpuledger/shim-$3/"
  ln -s "shim-$3" "$tree/node/usr/lib/gpuledger/shim"
  sed -Ef "$1/packaging/config.sed" "$1/configs/config.toml" >"$tree/node/etc/gpuledger/config.toml"
  pack gpuledger.dev/setup:latest "$tree" /gpuledger-setup
  imports
  rm -rf "$tree"
  mkdir -p "$tree/usr/bin"
  cp "$2/gpuledger-kube" "$tree/usr/bin/"
  pack gpuledger.dev/kube:latest "$tree" /usr/bin/gpuledger-kube
  imports
}

# others_images: imports the sandbox's image, and those that tenants' pods name. That of CUDA is a shell and Debian's C
# library, and what the stand-in driver reads its GPUs from.
others_images() {
  local tree=$work/tree name library
  rm -rf "$tree"
  mkdir -p "$tree"/{bin,dev,etc,proc,sys,tmp}
  cp "$root/bin/busybox" "$tree/bin/"
  for name in sh sleep; do ln -s busybox "$tree/bin/$name"; done
  printf '#!/bin/sh\ntrap exit TERM INT\nwhile :; do sleep 1000 & wait; done\n' >"$tree/pause"
  chmod 755 "$tree/pause"
  pack "$pause" "$tree" /pause
  imports
  pack docker.io/library/busybox:latest "$tree" /pause
  imports
  mkdir -p "$tree/run/fakedriver" "$tree/usr/bin"
  head -n 1 "$root/usr/local/share/driver/devices" >"$tree/run/fakedriver/devices"
  for library in "$root"/lib/*-linux-gnu/{libc,libdl,libm,libpthread,librt}.so.? "$root"/lib64/ld-linux*; do
    install -D -m 755 "$library" "$tree${library#"$root"}"
  done
  ldconfig -r "$tree"
  pack docker.io/nvidia/cuda:13.0.1-base-ubuntu24.04 "$tree" /pause
  imports
}

# --- what is looked at

# typed SECTION...: types the commands of these sections of the page, near the cluster.
typed() {
  local IFS=,
  sed "s/NODE/$node/" docs/kubernetes-quickstart.md >"$work/page.md"
  near "$work/typist" "$work/page.md" "$*" -- bash || fail "docs/kubernetes-quickstart.md, $*"
}

# node_files: prints everything in /etc, /usr and /opt, with its mode, owner and content. What an administrator keeps after
# a removal is left out: the node's own configuration.
node_files() {
  (cd "$root" && find etc usr opt -path opt/cluster -prune -o -path etc/gpuledger -prune -o -path etc/resolv.conf -prune -o -printf '%y %m %U:%G %p %l\n' | sort
    find etc usr opt -path opt/cluster -prune -o -path etc/gpuledger -prune -o -path etc/resolv.conf -prune -o -type f -print0 | sort -z | xargs -0 sha256sum)
}
# untouched MORE: fails unless the node is as it was, except for what grep takes by MORE.
untouched() { diff <(grep -vE "$1" <<<"$before") <(node_files | grep -vE "$1") || fail "the node is not as it was"; }
readonly until_boot='gpuledger-runtime|usr/lib/gpuledger|etc/tmpfiles.d|usr/(bin|lib)$'

container_of() { kubectl get pod "$1" -o 'jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount} {.status.phase}' 2>/dev/null; }
runs() { [[ $(container_of "$1") = *" Running" ]]; }
# restarted NAME CONTAINER: a pod runs again, in another container, after a boot. The API has its old
# state for a while.
restarted() { runs "$1" && [ "$(container_of "$1")" != "$2" ]; }
# reboots: ends all processes of the node at once, and boots it again.
reboots() { shut; boots; }
boots() {
  local restarts=${bystander#* }
  boot
  eventually "the pod of somebody else runs again" restarted bystander "$bystander"
  eventually "the node is ready" node_is_ready
  bystander=$(container_of bystander)
  [[ $bystander = *" $((${restarts% *} + 1)) Running" ]] || fail "the boot made the pod of somebody else $bystander"
}
# goes_on: fails if the pod of somebody else is not the container that it was.
goes_on() { [ "$(container_of bystander)" = "$bystander" ] || fail "the pod of somebody else was $bystander and is $(container_of bystander)"; }
available() { [ "$(kubectl -n gpuledger-system get "daemonset/$1" -o 'jsonpath={.status.numberAvailable} {.status.updatedNumberScheduled} {.status.observedGeneration}' 2>/dev/null)" = \
  "1 1 $(kubectl -n gpuledger-system get "daemonset/$1" -o 'jsonpath={.metadata.generation}' 2>/dev/null)" ]; }
is_set_up() { available gpuledger-setup && available gpuledger-dra; }
mode() { sed -n 's/^  mode = "\(.*\)"/\1/p' "$root/etc/gpuledger/cluster.toml"; }
enforces() { [ "$(mode)" = enforce ]; }
refused() { kubectl describe pod refused | grep -q 'gpuledger: refused (visible-devices-all)'; }
helm() { near helm "$@" >"$work/said" 2>&1 || { cat "$work/said" >&2; fail "helm $*"; }; }

# given_back: fails unless the node is as it was, at once but for what the engine still needs, and
# after a boot.
given_back() {
  goes_on
  untouched "$until_boot"
  step "the next boot removes what the engine still needed"
  reboots
  untouched '^$'
  ! [ -e "$root/usr/bin/gpuledger-runtime" ] || fail "gpuledger-runtime stays after a boot"
}

page() {
  step "the quick start"
  images . "$work/new" 2
  typed "Three commands"
  goes_on
  step "and back"
  typed "Take it back"
  given_back
}

upgrade() {
  local tenant name until
  step "the objects of the last release ($last), and a pod with a share of theirs"
  mkdir -p "$work/last"
  git archive "$last" | tar -x -C "$work/last"
  programs "$work/last" "$work/old"
  images "$work/last" "$work/old" 1
  kubectl label node "$node" gpuledger.dev/node=shared --overwrite >/dev/null
  kubectl apply -f "$work/last/packaging/kubernetes/install.yaml" >"$work/said" 2>&1 || { cat "$work/said" >&2; fail "the last release's set-up"; }
  kubectl apply -k "$work/last/kube/manifests/dra" >"$work/said" 2>&1 || { cat "$work/said" >&2; fail "the last release's agent"; }
  eventually "the node is set up" is_set_up
  sed '/^---/,$d' kube/manifests/examples/quickstart.yaml | kubectl create -f - >/dev/null
  kubectl create -f "$tenants" >/dev/null
  eventually "a pod with a share runs" runs tenant
  goes_on
  tenant=$(container_of tenant)

  step "the upgrade, and a reboot in its middle"
  images . "$work/new" 2
  goes_on
  ln -f "$root/usr/bin/gpuledger" "$root/packages/was"
  kubectl -n gpuledger-system delete daemonset gpuledger-setup >/dev/null # a container of it would stay
  helm install gpuledger kube/manifests/helm --namespace gpuledger-system --take-ownership
  until=$((SECONDS + 120))
  while [ "$root/usr/bin/gpuledger" -ef "$root/packages/was" ]; do # the first program that it replaces
    [ $SECONDS -lt $until ] || fail "the set-up does not replace the programs"
  done
  shut
  for name in gpuledger gpuledger-runtime gpuledger-hook gpuledgerd; do
    cmp -s "$work/old/$name" "$root/usr/bin/$name" && echo "$name is of the last release" || echo "$name is new"
  done
  boots
  eventually "the node is set up" is_set_up
  eventually "the pod with a share runs again" restarted tenant "$tenant"
  [ "$(kubectl logs tenant)" = "4096 MiB" ] || fail "after the boot the pod with a share sees $(kubectl logs tenant)"
  tenant=$(container_of tenant)
  [ "$(kubectl -n gpuledger-system get daemonset gpuledger-setup -o 'jsonpath={.spec.template.spec.containers[*].name}')" = config ] ||
    fail "the set-up has containers of the last release"

  step "from report to enforce"
  [ "$(mode)" = report ] || fail "it does not begin in report mode"
  typed "On nodes that others use"
  eventually "the node enforces" enforces
  sed -n '/^---/h; //!H; $!d; x; p' kube/manifests/examples/quickstart.yaml | kubectl create -f - >/dev/null
  eventually "a pod is refused, and its events have the reason" refused
  goes_on
  [ "$(container_of tenant)" = "$tenant" ] || fail "the pod with a share was $tenant and is $(container_of tenant)"

  step "and back"
  kubectl delete pod tenant refused >/dev/null
  helm uninstall gpuledger --namespace gpuledger-system --timeout 15m
  given_back
}

# scheduler_image: imports the image of kube-scheduler that the chart names, of the cluster's version.
scheduler_image() {
  local tree=$work/tree version library
  version=$(kubectl version -o json | jq -r .serverVersion.gitVersion | grep -oE '^v[0-9]+[.][0-9]+[.][0-9]+')
  rm -rf "$tree"
  install -D -m 755 .cache/engines/kubernetes/kube-scheduler "$tree/usr/local/bin/kube-scheduler"
  ldd "$tree/usr/local/bin/kube-scheduler" | grep -oE '/[^ ]+' | while read -r library; do # Kubernetes' own is static
    install -D -m 755 "$(realpath "$library")" "$tree$library"
  done
  pack "registry.k8s.io/kube-scheduler:$version" "$tree" /usr/local/bin/kube-scheduler
  imports
}

deployed() { [ "$(kubectl -n gpuledger-system get "deployment/$1" -o 'jsonpath={.status.availableReplicas}' 2>/dev/null)" = 2 ]; }
of_pod() { kubectl get pod "$1" -o "jsonpath={$2}"; }
# asks NAME MEMORY LABELS: a pod that asks for a GPU as those of ACK do. It names no scheduler.
asks() {
  kubectl create -f - <<POD
{apiVersion: v1, kind: Pod, metadata: {name: $1, labels: {$3}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: main,
  image: "docker.io/nvidia/cuda:13.0.1-base-ubuntu24.04", resources: {limits: {aliyun.com/gpu-mem: $2}},
  command: [sh, -c, "trap exit TERM; nvidia-smi --query-gpu=memory.total --format=csv,noheader; while :; do sleep 1000 & wait; done"]}]}}
POD
}
sees() { [ "$(kubectl logs "$1")" = "$2" ]; }
ledger_of_node() { kubectl get node "$node" -o 'jsonpath={.metadata.annotations.gpuledger\.dev/ledger}'; }
leader() { kubectl -n gpuledger-system get lease gpuledger-scheduler -o 'jsonpath={.spec.holderIdentity}' | cut -d _ -f 1; }
# waits_for POD TEXT: fails unless the scheduler says that of a pod.
waits_for() { kubectl get pod "$1" -o 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}' | grep -qF -- "$2"; }

scheduler() {
  local first
  step "the scheduler and the webhook as pods"
  images . "$work/new" 2
  scheduler_image
  kubectl label node "$node" gpuledger.dev/node=shared --overwrite >/dev/null
  helm install gpuledger kube/manifests/helm --namespace gpuledger-system --create-namespace --set agent=device-plugin --set policy.mode=enforce \
    --set scheduler.enabled=true --set webhook.enabled=true --set 'scheduler.resources[0].name=aliyun.com/gpu-mem'
  eventually "the node is set up" available gpuledger-setup
  eventually "the device plugin runs" available gpuledger-device-plugin
  eventually "both schedulers are ready" deployed gpuledger-scheduler
  eventually "both webhooks are ready" deployed gpuledger-webhook

  step "a pod of ACK is placed"
  asks ack 4 '' >/dev/null
  eventually "it runs" runs ack
  eventually "it sees its share" sees ack "4096 MiB"
  [ "$(of_pod ack .spec.schedulerName) $(of_pod ack '.metadata.annotations.gpuledger\.dev/memory\.main')" = "gpuledger-scheduler 4GiB" ] ||
    fail "it was not placed by the scheduler: $(kubectl get pod ack -o yaml)"
  asks two 8 'aliyun.com/gpu-count: "2"' >/dev/null
  eventually "a pod over two GPUs runs" runs two
  [ "$(inside gpuledger grants --json | jq -c '[.grants[] | select(.gpus | length == 2) | .source, .mode, .gpus[].memory]')" = '["adopted","limit",4294967296,4294967296]' ] ||
    fail "it has $(inside gpuledger grants)"
  ! asks uneven 7 'aliyun.com/gpu-count: "2"' >"$work/said" 2>&1 || fail "7 GiB over two GPUs is created"
  grep -qF "7 over aliyun.com/gpu-count: 2 is no whole number for each GPU" "$work/said" || fail "the webhook says $(cat "$work/said")"
  asks huge 20 '' >/dev/null
  eventually "a pod that fits no GPU waits, with the reason" waits_for huge "no GPU has 20GiB"

  step "the scheduler that leads is deleted"
  first=$(leader)
  kubectl -n gpuledger-system delete pod "$first" --grace-period=0 --force >/dev/null 2>&1 || fail "the leader is $first"
  asks next 2 '' >/dev/null
  eventually "the next pod runs" runs next
  [ "$(leader)" != "$first" ] || fail "$first still leads"
  eventually "both schedulers are ready again" deployed gpuledger-scheduler

  step "and back"
  kubectl delete pod ack two next huge >/dev/null
  [ -n "$(ledger_of_node)" ] || fail "the node publishes nothing"
  helm uninstall gpuledger --namespace gpuledger-system --timeout 15m
  [ -z "$(ledger_of_node)" ] || fail "the node still publishes $(ledger_of_node)"
  given_back
}

readonly last=46e0f1b # the last version whose chart did not set up the nodes

step "the programs"
go build -C packaging/tools/helm -p 2 -o "$work/bin/helm" tool
go build -C packaging/tools/image -p 2 -o "$work/image" .
go build -p 2 -o "$work/typist" ./test/transcript/walk
PATH=$work/bin:$PWD/.cache/engines/kubernetes:$PATH
programs . "$work/new"
cat >"$work/tenant.yaml" <<'POD'
apiVersion: v1
kind: Pod
metadata:
  name: tenant
spec:
  runtimeClassName: gpuledger
  resourceClaims:
    - {name: gpu, resourceClaimTemplateName: share}
  containers:
    - name: main
      image: docker.io/nvidia/cuda:13.0.1-base-ubuntu24.04
      command: [sh, -c, "trap exit TERM; nvidia-smi --query-gpu=memory.total --format=csv,noheader; while :; do sleep 1000 & wait; done"]
      resources: {claims: [{name: gpu}]}
POD
readonly tenants=$work/tenant.yaml

step "a node and its cluster"
packaging/roots.sh debian "$root"
mount --bind "$root" "$root" # a runtime's pivot_root asks for a mount point above it
stand_in_driver
cluster
driver_in_containers
boot
eventually "the node is ready" node_is_ready
others_images
kubectl run bystander --image=busybox --image-pull-policy=IfNotPresent >/dev/null
eventually "the pod of somebody else runs" runs bystander
bystander=$(container_of bystander)
before=$(node_files)

parts=(page upgrade scheduler)
[ $# = 0 ] || parts=("$@")
for part in "${parts[@]}"; do
  case $part in
    page | upgrade | scheduler) "$part" ;;
    *) fail "there is no part $part" ;;
  esac
done
step "all of it"
