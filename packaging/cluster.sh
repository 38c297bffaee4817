# packaging/cluster.sh: a cluster of one node on a booted Debian: etcd, API server, controller
# manager, scheduler, and a kubelet with containerd 2, each a unit of its systemd. The node has no
# network but its own; its pods reach the API server, for which no kube-proxy is needed: the node has
# the address of the service. The API server goes to the pods of webhooks itself
# (--enable-aggregator-routing). The callers set $root and $work.
# shellcheck shell=bash disable=SC2154

readonly node=gpu-1 pause=registry.k8s.io/pause:3.10

# unit NAME AFTER COMMAND...: makes a unit that starts at boot.
unit() {
  cat >"$root/etc/systemd/system/$1.service" <<UNIT
[Unit]
After=$2
StartLimitIntervalSec=0
[Service]
ExecStart=${*:3}
Restart=always
RestartSec=1
KillMode=process
Delegate=yes
[Install]
WantedBy=multi-user.target
UNIT
  ln -sfn "../$1.service" "$root/etc/systemd/system/multi-user.target.wants/$1.service"
}

# access FILE TOKEN: writes the configuration for access to the API with a token.
access() {
  cat >"$1" <<CONFIG
{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
 clusters: [{name: c, cluster: {server: "https://127.0.0.1:443", insecure-skip-tls-verify: true}}], users: [{name: u, user: {token: $2}}]}
CONFIG
}

# cluster: installs the cluster in $root. A root without CAP_SYS_RESOURCE can set no negative OOM score.
cluster() {
  local weak=false etc=$root/etc/kubernetes plugin
  [ $((0x$(awk '$1 == "CapEff:" { print $2 }' /proc/self/status) >> 24 & 1)) = 1 ] || weak=true
  mkdir -p "$etc" "$root/opt/cluster" "$root/var/lib/kubelet" "$root/opt/cni/bin"
  mkdir -p "$root"/opt/cluster/{kubernetes,etcd}
  mount --bind .cache/engines/kubernetes "$root/opt/cluster/kubernetes"
  mount --bind .cache/engines/etcd "$root/opt/cluster/etcd"
  install -m 755 .cache/engines/containerd-2/c* .cache/engines/runc/runc "$root/usr/bin/"
  rm -f "$root/usr/sbin/runc"
  for plugin in bridge host-local loopback; do install -m 755 /usr/lib/cni/$plugin "$root/opt/cni/bin/"; done
  echo "$node" >"$root/etc/hostname"
  cat >"$root/etc/containerd/config.toml" <<CONFIG
version = 3 # the administrator's
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "$pause"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = $weak
CONFIG
  cat >"$root/etc/cni/net.d/10-node.conflist" <<'CONFIG'
{"cniVersion": "1.0.0", "name": "node", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
  "ipam": {"type": "host-local", "dataDir": "/run/addresses", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
CONFIG
  openssl genrsa -out "$etc/sa.key" 2048 2>/dev/null
  echo 'admin,admin,admin,"system:masters"' >"$etc/tokens.csv"
  access "$etc/admin.yaml" admin
  cat >"$etc/kubelet.yaml" <<'CONFIG'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
readOnlyPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
oomScoreAdj: 0
resolvConf: ""
clusterDNS: [10.96.0.10]
imageGCHighThresholdPercent: 100 # nothing is pulled, so nothing comes back
evictionHard: {imagefs.available: 50Mi, nodefs.available: 50Mi, memory.available: 50Mi}
CONFIG
  # the kubelet finds its address by the default route, and reads the kernel's messages
  cat >"$root/usr/local/sbin/node-network" <<'NETWORK'
#!/bin/sh
set -e
ip() { busybox ip "$@"; }
[ -e /dev/kmsg ] || mknod -m 600 /dev/kmsg c 1 11
mount --make-rshared /
ip link set lo up
ip link add node0 type bridge
ip addr add 10.77.0.1/24 dev node0
ip link set node0 up
ip route add default via 10.77.0.254
ip addr add 10.96.0.1/32 dev lo
NETWORK
  chmod 755 "$root/usr/local/sbin/node-network"
  printf '[Unit]\nBefore=containerd.service\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/local/sbin/node-network\n[Install]\nWantedBy=multi-user.target\n' \
    >"$root/etc/systemd/system/node-network.service"
  ln -sfn ../node-network.service "$root/etc/systemd/system/multi-user.target.wants/node-network.service"
  local bin=/opt/cluster/kubernetes to=/etc/kubernetes
  unit etcd node-network.service /opt/cluster/etcd/etcd --data-dir /var/lib/etcd --log-level=error
  unit kube-apiserver etcd.service $bin/kube-apiserver --etcd-servers=http://127.0.0.1:2379 --secure-port=443 --advertise-address=10.77.0.1 \
    --endpoint-reconciler-type=none --enable-aggregator-routing --cert-dir=$to/certs --token-auth-file=$to/tokens.csv --authorization-mode=Node,RBAC --allow-privileged=true \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=$to/sa.key --service-account-signing-key-file=$to/sa.key \
    --service-cluster-ip-range=10.96.0.0/24 --kubelet-preferred-address-types=InternalIP
  unit kube-controller-manager kube-apiserver.service $bin/kube-controller-manager --kubeconfig=$to/admin.yaml --cert-dir=/run/kube-controller-manager \
    --leader-elect=false --service-account-private-key-file=$to/sa.key --root-ca-file=$to/certs/apiserver.crt --use-service-account-credentials
  unit kube-scheduler kube-apiserver.service $bin/kube-scheduler --kubeconfig=$to/admin.yaml --cert-dir=/run/kube-scheduler --leader-elect=false
  unit kubelet "containerd.service kube-apiserver.service" $bin/kubelet --config=$to/kubelet.yaml --kubeconfig=$to/admin.yaml --cert-dir=/var/lib/kubelet/pki \
    --hostname-override=$node
}

# driver_in_containers: lets containers, too, see the stand-in driver and its GPUs where the kernel shows
# them. The agents look there, in a /proc and a /sys of their own.
driver_in_containers() {
  mv "$root/usr/bin/runc" "$root/usr/bin/real-runc"
  cat >"$root/usr/bin/runc" <<'RUNC'
#!/bin/sh
bundle=. previous= create=
for word; do
  case $previous in --bundle | -b) bundle=$word ;; esac
  case $word in --bundle=*) bundle=${word#*=} ;; create | run) create=yes ;; esac
  previous=$word
done
if [ -n "$create" ]; then
  jq '.hooks.createContainer += [{path: "/usr/local/sbin/driver-in-container"}]' "$bundle/config.json" >"$bundle/config.json.driver"
  mv "$bundle/config.json.driver" "$bundle/config.json"
fi
exec /usr/bin/real-runc "$@"
RUNC
  cat >"$root/usr/local/sbin/driver-in-container" <<'HOOK'
#!/bin/sh
cd "$(jq -r .bundle)" && cd "$(jq -r .root.path config.json)" || exit
mount --bind /run/proc-devices proc/devices
[ ! -d sys/bus ] || mount --bind /sys/bus/pci/devices sys/bus/pci/devices
HOOK
  chmod 755 "$root/usr/bin/runc" "$root/usr/local/sbin/driver-in-container"
}

# near COMMAND...: runs a command of this machine in the node's network, as on a machine that reaches
# the cluster.
near() { nsenter --target "$init" --net -- env KUBECONFIG="$root/etc/kubernetes/admin.yaml" HOME="$work" PATH="$PATH" "$@"; }
kubectl() { near "$PWD/.cache/engines/kubernetes/kubectl" "$@"; }
node_is_ready() { [ "$(kubectl get node "$node" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" = True ]; }

# pack NAME TREE ENTRYPOINT: makes an image, in the node's /packages.
pack() {
  mkdir -p "$root/packages"
  "$work/image" pack -root "$2" -arch "$(go env GOARCH)" -entrypoint "$3" -name "$1" -out "$root/packages/image.tar"
}
imports() { inside ctr -n k8s.io image import --local /packages/image.tar >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "ctr image import"; }; }
