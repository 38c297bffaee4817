# users.sh: programs of the node without a container.
# For ../test-gpu.sh, which has the functions that the chapters share.
# shellcheck shell=bash disable=SC2154 # each, long, part and status are set there

# unledgered: programs without a container. The shim holds one that is started through us, and the modes of the nodes hold other users.
unledgered() {
  local i nodes uid=65534
  chapter "Programs without a container"
  outside_containers gpuledger run --memory "${part}MiB" -- "$PWD/work" cache
  rmdir /run/gpuledger 2>/dev/null || : # the shim's mount point; run_dir is another one here
  awk -v part="$part" '/^cache/ { good = $3 <= part && $3 >= part * 3 / 4 && $5 == part && $9 == "2," } END { exit !good }' said ||
    die "it should have nearly all of $part MiB and then error 2"
  result "gpuledger run, cache"
  if ! real_gpu || ! command -v setpriv >/dev/null; then
    skipped "a user's GPU nodes" "they take a real driver, and setpriv"
    return
  fi
  chmod a+x . .. ../.. 2>/dev/null || : # others reach the programs; /tmp keeps its mode
  nodes=(/dev/nvidia0 /dev/nvidiactl /dev/nvidia-uvm)
  printf -- '- nodes of the driver, and NVreg_DeviceFileMode: `%s, %s`\n' "$(stat -c '%A %n' "${nodes[@]}" | tr '\n' ' ')" \
    "$(sed -n 's/^DeviceFileMode: //p' /proc/driver/nvidia/params)" >>report
  cp gpu /tmp/gpu-of-a-user && chmod 755 /tmp/gpu-of-a-user
  chmod 660 "${nodes[@]}"
  attempt setpriv --reuid $uid --regid $uid --clear-groups /tmp/gpu-of-a-user total 64
  result "a user, nodes of mode 0660"
  printf -- '- nodes afterwards: `%s`\n' "$(stat -c '%A %n' "${nodes[@]}" | tr '\n' ' ')" >>report
  chmod 660 "${nodes[@]}"
  attempt nvidia-smi -L
  ./gpu total >/dev/null
  printf -- '- nodes after programs of root: `%s`\n' "$(stat -c '%A %n' "${nodes[@]}" | tr '\n' ' ')" >>report
  printf '[enforcement]\nuser_nodes = "acl"\n' >>config.toml
  chmod 660 "${nodes[@]}"
  daemon
  run gpuledger grant --memory "${part}MiB" --gpu 0 --user $uid
  reference >user.grant
  for ((i = 0; i < 100; i++)); do
    ! getfacl -cn /dev/nvidia0 2>/dev/null | grep -q "user:$uid:rw" || break
    setpriv --reuid $uid --regid $uid --clear-groups sh -c ': </dev/nvidia0' 2>/dev/null && break
    sleep 0.1
  done
  attempt setpriv --reuid $uid --regid $uid --clear-groups /tmp/gpu-of-a-user total 64
  result "a user with a grant, user_nodes = acl"
  nvidia-smi -L >/dev/null
  ./gpu total >/dev/null
  attempt setpriv --reuid $uid --regid $uid --clear-groups /tmp/gpu-of-a-user total 64
  result "the same after programs of root"
  printf -- '- nodes then: `%s`\n' "$(stat -c '%A %n' "${nodes[@]}" | tr '\n' ' ')" >>report
  printf -- '- and gpuledgerd says: `%s`\n' "$(sed -n 's/.*msg="\(user nodes: .*\)"$/\1/p' daemon.log | head -n 1)" >>report
  run gpuledger release "$(cut -d. -f1 user.grant)"
  sleep 2
  attempt setpriv --reuid $uid --regid $uid --clear-groups /tmp/gpu-of-a-user total 64
  result "and after its release"
  no_daemon
  chmod 666 "${nodes[@]}"
  rm /tmp/gpu-of-a-user
}
