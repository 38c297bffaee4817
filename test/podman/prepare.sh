# prepare.sh: what Podman's tests find where they run: storage, state and settings of their own, the runtime at its usual place, and the image.
# shellcheck shell=bash disable=SC2154 # they are inside.sh's
cover /var/lib
mkdir -p /var/lib/containers
for dir in /run /var/lib/containers /var/tmp; do
  mount -t tmpfs -o mode=755 podman "$dir"
done
chmod 1777 /var/tmp
mkdir -p /run/lock /etc/containers
ln -s /proc/self/fd/0 /dev/stdin # podman cp reads it
cat >/etc/containers/containers.conf <<CONF
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
log_driver = "k8s-file"
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "$(basename "$RUNTIME")"
CONF
printf '[storage]\ndriver = "overlay"\ngraphroot = "/var/lib/containers/storage"\nrunroot = "/run/containers/storage"\n' >/etc/containers/storage.conf
grep -q '^PODMAN_TEST_IMAGE_TAG=.*"20220615"' "$TESTS/helpers.bash" || { echo "Podman's tests want another image than testimage:20220615" >&2; exit 1; }
mount --bind "$(readlink -f "$RUNTIME")" "$(command -v "$(basename "$RUNTIME")")"
podman import -q -c WORKDIR=/home/podman -c 'CMD ["/bin/echo","This container is intended for podman CI testing"]' -c LABEL=created_by=test \
  -c LABEL=created_at=2022-06-15T00:00:00Z "$CACHE/testimage.tar" quay.io/libpod/testimage:20220615 >"$OUT/import.log" 2>&1
