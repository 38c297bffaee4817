#!/bin/bash
# run.sh [RUNTIME-CGROUP[,...]] [FILE.bats...]
# Runs CRI-O's own integration tests, those that start containers, as test/runc runs runc's: through gpuledger-runtime, on a node with GPUs and
# on one without an inventory, and with the bare runtime what does not pass, compared test by test. RUNTIME-CGROUP: runc-v1, crun-v1, runc-v2, crun-v2 (default:
# runc-v1). Exit status 1 where a test's result is another one through us, and differences.txt does not explain it. CRI-O, its tests, runc and
# crictl are those of test/engines/build.sh; crun is Debian's. The images are made here; what pulls another one fails, bare as through us.
# left-out.txt has the files that do not run, each with its reason.
# Results: .cache/crio-suite/out/RUNTIME-CGROUP/NODE/FILE.tap. Root, Debian 12.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PATH:/usr/local/go/bin:/usr/sbin:/sbin
# shellcheck disable=SC2034 # they are for suite.sh
name=crio known='(runc|crun)-v[12]' engine=cri-o here=$PWD/test/crio
. test/suite/suite.sh

# What runs unless files are named: all but those of left-out.txt.
files=(cdi cgroups cpu_load_balancing ctr ctr_pause_unpause ctr_seccomp default_mounts devices drop_infra hooks image_volume
  infra_ctr_cpuset inspect inspecti logs metrics namespaces pod restore runtimeconfig runtimeversion
  sanity_checks seccomp_notifier shm shm_size stats status umask_annotation userns_annotation workloads)

# module: the tests of the version that is built, as CRI-O's Go module has them.
module() {
  local source common
  source=$(cd test/engines/crio-suite && go list -m -f '{{.Dir}}' github.com/cri-o/cri-o)
  common=$(cd test/engines/crio-suite && go list -m -f '{{.Dir}}' github.com/containers/common)
  rm -rf "$cache/test" && cp -r "$source/test" "$cache/test"
  chmod -R u+w "$cache/test"
  find "$cache/test" -name '*.sh' -exec chmod +x {} + # the module's zip has no modes
  install -m 644 "$common/pkg/seccomp/seccomp.json" "$cache/seccomp.json"
  # Debian's bats is 1.8, and the tests use nothing that is newer.
  sed -i 's/^bats_require_minimum_version 1.9.0$/bats_require_minimum_version 1.8.0/' "$cache/test/helpers.bash"
  # A file of tests has a mount namespace of its own, where nothing is shared as it is on a machine with systemd.
  echo 'mount --make-rshared /' >>"$cache/test/helpers.bash"
  # A test that fails may leave CRI-O running, which holds up bats while it has its output.
  # shellcheck disable=SC2016 # it is the tests'
  sed -i 's/&>"$CRIO_LOG" &$/3>\&- \&>"$CRIO_LOG" \&/' "$cache/test/helpers.bash"
  # These tests ask systemd without a look at which program manages cgroups.
  sed -i '/^@test "conmon \(pod\|custom\) cgroup" {$/a skip "needs systemd"' "$cache/test/cgroups.bats"
  sed -i '/^@test "ctr journald logging" {$/a skip "needs systemd"' "$cache/test/ctr.bats"
  # crictl as test/engines/build.sh builds it says no version.
  sed -i "s/\$(\$crictl_binary --version)/$(test/engines/build.sh --list | awk '$1 == "crictl" { print $2 }')/" "$cache/test/helpers.bash"
  # Here is no systemd: a pod's cgroup is not a slice but what helpers.bash takes it to be where cgroupfs manages cgroups.
  sed -i 's/"pod_123-456.slice"/"pod_123-456"/' "$cache/test/testdata/sandbox_config.json"
}

# program ROOT FILE...: programs of this machine, with their libraries, for a root file system.
program() {
  local root=$1 file
  shift
  for file in "$@" $(ldd "$@" | awk '{ for (i = 1; i <= NF; i++) if ($i ~ /^\//  && $i !~ /:$/) print $i }' | sort -u); do
    mkdir -p "$root$(dirname "$file")"
    rm -f "$root$file"
    cp -L "$file" "$root$file"
  done
}

# archive NAME ROOT CONFIG: an image of one layer, in the form of docker save, copied to where the tests take their images from.
archive() {
  local dir id artifact
  dir=$(mktemp -d -p "$work")
  tar -C "$2" --mtime=@1600000000 -cf "$dir/layer.tar" .
  id=$(sha256sum "$dir/layer.tar" | cut -d ' ' -f 1)
  jq -n --arg id "sha256:$id" --arg arch "$(go env GOARCH)" --argjson config "$3" '{architecture: $arch, os: "linux",
    created: "2020-09-13T12:26:40Z", config: $config, rootfs: {type: "layers", diff_ids: [$id]}}' >"$dir/config.json"
  jq -n --arg name "$1" '[{Config: "config.json", RepoTags: [$name], Layers: ["layer.tar"]}]' >"$dir/manifest.json"
  tar -C "$dir" -cf "$dir/image.tar" manifest.json config.json layer.tar
  # shellcheck disable=SC2016 # they are the inner shell's
  artifact=$(ARTIFACTS_PATH=$cache/images bash -c '. "$0" && img2dir "$1"' "$cache/test/common.sh" "$1")
  mkdir -p "$artifact"
  "$engines/crio-suite/copyimg" --signature-policy "$cache/test/policy.json" --import-from "docker-archive:$dir/image.tar" --export-to "dir:$artifact"
}

# images: what stands for the images that the tests copy from registries. Their server is a program that waits.
images() {
  local root pause
  rm -rf "$cache/images"
  pause=$(mktemp -d -p "$work") && chmod 755 "$pause"
  gcc -O2 -static -o "$pause/pause" "$here/pause.c"
  archive registry.k8s.io/pause:3.10 "$pause" '{"Entrypoint": ["/pause"], "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}'
  archive quay.io/crio/hello-wasm:latest "$pause" '{"Cmd": ["/pause"]}'
  root=$(mktemp -d -p "$work") && chmod 755 "$root"
  busybox_root "$root"
  mkdir -p "$root"/{data,home/test,usr/lib,usr/local/bin,proc,sys,run}
  program "$root" /bin/bash /bin/ls /usr/bin/findmnt /usr/bin/setpriv
  ln -sf bash "$root/bin/sh"
  ln "$root/bin/busybox" "$root/usr/bin/cp"
  # The tests of seccomp compile a program in a container: here it is compiled before.
  gcc -O2 -static -o "$root/usr/lib/clone-ns" "$cache/test/testdata/clone-ns.c"
  # shellcheck disable=SC2016 # it is the image's
  printf '#!/bin/sh\nexec cp /usr/lib/clone-ns "$3"\n' >"$root/usr/bin/gcc" && chmod 755 "$root/usr/bin/gcc"
  install "$pause/pause" "$root/usr/local/bin/redis-server"
  install "$cache/test/testdata/docker-entrypoint.sh" "$root/usr/local/bin/"
  # shellcheck disable=SC2016 # it is the image's
  printf '#!/bin/sh\nuser=$1\nshift\nexec setpriv --reuid "$user" --regid "$user" --init-groups "$@"\n' >"$root/usr/bin/su-exec"
  chmod 755 "$root/usr/bin/su-exec"
  printf 'redis:x:998:998::/data:/bin/bash\ntest:x:5000:5000::/home/test:/bin/bash\n' >>"$root/etc/passwd"
  printf 'redis:x:998:\ntest:x:5000:\n' >>"$root/etc/group"
  : >"$root/etc/fstab" # swapoff reads it
  chown 998:998 "$root/data" && chown -R 5000:5000 "$root/etc" "$root/home/test"
  archive quay.io/crio/fedora-crio-ci:latest "$root" '{"Entrypoint": ["docker-entrypoint.sh"], "Cmd": ["redis-server"], "WorkingDir": "/data",
    "Volumes": {"/data": {}, "/imagevolume": {}}, "ExposedPorts": {"6379/tcp": {}}, "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}'
}

# runtime NAME FILE: the runtime, both bare and below gpuledger-runtime. A root without CAP_SYS_RESOURCE, as sandboxes have it, can neither give it
# to a container nor lower an OOM score, which CRI-O wants of each pod's first process. There the runtime is a script that takes both away.
runtime() {
  local weak=$cache/runtime/$1
  mkdir -p "$cache/runtime"
  if setpriv --dump | grep -q '^Capability bounding set:.*\bsys_resource\b'; then
    install -m 755 "$2" "$weak"
    return
  fi
  cat >"$weak" <<WEAK
#!/bin/bash
config= process= previous= command=
for word; do
  case \$previous in
    --bundle | -b) config=\$word/config.json ;;
    --process | -p) process=\$word ;;
  esac
  case \$word in create | run | restore | exec) command=\${command:-\$word} ;; esac
  previous=\$word
done
weaker='if (.oomScoreAdj // 0) < 0 then .oomScoreAdj = 0 else . end | (.capabilities // empty) |= map_values(map(select(. != "CAP_SYS_RESOURCE")))'
if [ "\$command" = exec ] && [ -n "\$process" ]; then
  jq "\$weaker" "\$process" >"\$process.weak" && mv "\$process.weak" "\$process"
elif [ -n "\$command" ] && [ -n "\$config" ]; then
  jq ".process |= (\$weaker)" "\$config" >"\$config.weak" && mv "\$config.weak" "\$config"
fi
exec "$2" "\$@"
WEAK
  chmod 755 "$weak"
}

place() { tests=$cache/test real=$cache/runtime/${1%-*}; }

begin "${1:-runc-v1}"
[ $# = 0 ] || shift
export ENGINES=$repo/.cache/engines
engines=$ENGINES
test/engines/build.sh runc crio crio-suite crictl
module
known_files "$cache/test"
images
runtime runc "$engines/runc/runc"
runtime crun "$(command -v crun)"
export BATS_TEST_TIMEOUT=240 # of one test, in seconds
[ $# -gt 0 ] || set -- "${files[@]/%/.bats}"
all "$@"
