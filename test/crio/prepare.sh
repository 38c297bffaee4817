# prepare.sh: what CRI-O's tests find where they run: the programs that they call, storage and state of their own, and settings.
# shellcheck shell=bash disable=SC2153,SC2154 # they are inside.sh's
cover /var/lib
mkdir -p /var/lib/{cni,containers,crio,kubelet}
for dir in /run /var/tmp /var/log /var/lib/{cni,containers,crio,kubelet}; do
  mount -t tmpfs -o mode=755 crio "$dir"
done
chmod 1777 /var/tmp
mkdir -p /run/lock /var/tmp/t /var/tmp/cni /etc/containers
# CRI-O keeps sockets below the tests' directories: a path of a socket has up to 107 characters.
export TMPDIR=/var/tmp/t BATS_TMPDIR=/var/tmp/t
cp /usr/lib/cni/{bridge,host-local,loopback,portmap} /var/tmp/cni/
cp "$TESTS/policy.json" "$TESTS/registries.conf" /etc/containers/
echo containers:2000000:1000000 | tee -a /etc/subuid >>/etc/subgid # as CRI-O's documentation says for pods with a user namespace
ln -s "$RUNTIME" "$DIR/bin/"
ln -s "$(command -v python3)" "$DIR/bin/python"
sysctl -q -w net.ipv4.ip_forward=1
export CRIO_BINARY_PATH=$ENGINES/crio/crio PINNS_BINARY_PATH=$ENGINES/crio/pinns CRICTL_BINARY=$ENGINES/crictl/crictl
export COPYIMG_BINARY=$ENGINES/crio-suite/copyimg CHECKSECCOMP_BINARY=$ENGINES/crio-suite/checkseccomp
export CONTAINER_CNI_PLUGIN_DIR=/var/tmp/cni ARTIFACTS_PATH=$CACHE/images CONTAINER_SECCOMP_PROFILE=$CACHE/seccomp.json
export CONTAINER_CGROUP_MANAGER=cgroupfs CONTAINER_CONMON_CGROUP=pod CONTAINER_DEFAULT_RUNTIME=${RUNTIME##*/}
