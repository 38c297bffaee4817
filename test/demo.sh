#!/bin/bash
# demo.sh: two GPUs, shared by grant, on this machine, and five in five modes. make demo installs what it needs and runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
me=demo
. test/story.sh

# ---------------------------------------------------------------- the node

set_up_node() {
  export GPULEDGER_CONFIG=$PWD/config.toml
  show export "GPULEDGER_CONFIG=$GPULEDGER_CONFIG"
  if real_gpu; then
    say "This machine has an NVIDIA driver: the story is told on its own GPUs."
    write_config nvml "" /
  else
    say "This machine has no NVIDIA GPU, so two are simulated, with a stand-in for the driver's libraries. Everything else is real: the containers, runc, the kernel's device cgroup."
    write_config simulated "$PWD/gpus.json" "$PWD/driver"
    run gpuledger inventory simulate --gpus 2 --memory 16160MiB --name "Tesla V100-SXM2-16GB" --out gpus.json
  fi
  show cat config.toml
  sed 's/^/  /' config.toml
  run gpuledger inventory refresh
  run gpuledger gpus
  gpus=$(gpuledger gpus --json | jq '[.gpus[] | select(.parent == null)] | length')
  [ "$gpus" -ge 1 ] || die "the inventory has no GPU"
  wide=$((gpus < 2 ? gpus : 2)) # over how many GPUs the first grant goes
  first=4096 second=4096        # MiB a GPU
  local i free
  for ((i = 0; i < wide; i++)); do
    free=$(mib "$(gpu free "$i")")
    while [ "$free" -lt $((first + second)) ] && [ "$first" -gt 16 ]; do
      first=$((first / 2)) second=$((second / 2))
    done
  done
}

count() { [ "$1" = 1 ] && echo "1 GPU" || echo "$1 GPUs"; }

# nodes CONTAINER: the minors of the GPUs whose nodes the container has.
nodes() { gpuledger-runtime --root run exec "$1" sh -c 'ls /dev' | sed -nE 's/^nvidia([0-9]+)$/\1/p' | sort -n; }

# ---------------------------------------------------------------- the story

story() {
  enter
  say "${bold}\$ export PATH=$OLDPWD/bin:\$PATH${plain}"
  show cd "$STORY_DIR"

  chapter "1. What this node has"
  set_up_node

  chapter "2. A grant over $(count "$wide"), and a container that holds it"
  say "A grant is an entry in the node's ledger. This one takes $(size "$first") on each of $(count "$wide")."
  run gpuledger grant --memory "$(size $((first * wide)))" --gpus "$wide" --label train
  local train granted
  train=$(reference)
  [ -n "$train" ] || die "the grant printed no reference"
  bundle train
  annotate train "$train"
  say "The reference is printed once. Whoever starts the container puts it into the container's annotations:"
  run jq -c .annotations train/config.json
  say "gpuledger-runtime stands where runc stood. It asks the ledger, edits the container's spec, and becomes runc:"
  run gpuledger-runtime --root run run --detach --bundle train train
  say "From inside: the granted GPUs, the control nodes that belong to every grant, and nothing else:"
  look train 'ls -l /dev/nvidia*'
  mapfile -t granted < <(nodes train)
  [ ${#granted[@]} = "$wide" ] || die "the container should have the nodes of $(count "$wide")"
  local minor=${granted[0]} foreign=0
  if real_gpu; then
    look train ": </dev/nvidia$minor && echo it opens"
    says "it opens"
  else
    say "The kernel lets it open them. \"No such device or address\" comes from the missing driver, after the permission was given:"
    look train "head -c 1 /dev/nvidia$minor"
    says "No such device or address"
  fi
  while [[ " ${granted[*]} " = *" $foreign "* ]]; do
    foreign=$((foreign + 1))
  done
  say "A node that it makes itself, for a GPU that was not granted, stays shut:"
  look train "mknod /dev/nvidia$foreign c 195 $foreign && head -c 1 /dev/nvidia$foreign"
  says "Operation not permitted"

  chapter "3. A second, smaller share"
  say "Placement is binpack: the fullest GPU on which it still fits."
  run gpuledger grant --memory "$(size $second)" --label infer
  local infer
  infer=$(reference)
  bundle infer
  annotate infer "$infer"
  run gpuledger-runtime --root run run --detach --bundle infer infer
  look infer 'ls -l /dev/nvidia*'
  [ "$(nodes infer | wc -l)" = 1 ] || die "the container should have one GPU node"
  run gpuledger gpus

  chapter "4. Nobody gets a GPU by asking for it"
  say "This image carries NVIDIA_VISIBLE_DEVICES=all, as most CUDA images do, and has no grant:"
  bundle greedy '.process.env += ["NVIDIA_VISIBLE_DEVICES=all"]'
  refused visible-devices-all gpuledger-runtime --root run run --bundle greedy greedy
  says "hint:"
  say "What would happen can be asked without doing it:"
  attempt gpuledger explain --bundle greedy
  [ "$status" = 3 ] || die "explain should have ended with status 3, refused"

  say ""
  say "A privileged container reaches every device of the node:"
  bundle privileged '
    .linux.resources.devices = [{allow: true, access: "rwm"}]
    | .process.capabilities |= map_values(. + ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_MODULE", "CAP_SYS_RAWIO"])
    | .linux.maskedPaths = [] | .linux.readonlyPaths = []'
  refused privileged-gpu gpuledger-runtime --root run run --bundle privileged privileged

  say ""
  say "This one has read the id of somebody else's grant in a log, and invents the secret:"
  bundle thief
  annotate thief "${train%.*}.$(printf '0%.0s' {1..32})"
  run jq -c .annotations thief/config.json
  attempt gpuledger-runtime --root run run --bundle thief thief
  [ "$status" != 0 ] || die "that should have been refused"
  grep -qE '\((grant-not-found|grant-owner-mismatch)\)' said || die "that should have been refused for its reference"
  printf '  %s(exit status %s)%s\n' "$dim" "$status" "$plain"

  chapter "5. Who has what"
  run gpuledger inspect
  run gpuledger grants
  say "Strength none: these images have no C library, so they get nothing of the driver, and nothing that holds them to the memory."

  chapter "6. A grant comes free by itself"
  say "One container is deleted, the other one's process is killed. No daemon runs; nothing is told to the ledger."
  run gpuledger-runtime --root run delete --force train
  run kill -KILL "$(gpuledger-runtime --root run state infer | jq .pid)"
  wait_until_free
  run gpuledger grants
  say "Both may be used again by their holders, until they are released:"
  run gpuledger release "${train%.*}" "${infer%.*}"
  run gpuledger inspect
  run gpuledger check

  gpuledger-runtime --root run delete --force infer
  memory
  real_gpu || modes
  chapter "That was all. The containers, the ledger and this folder are gone now; run it again if you like."
}

# memory: a program gets what its grant says, and sees no more.
memory() {
  local mib=4096 held id
  chapter "7. A container sees its grant as the GPU, and gets not a byte more"
  while [ "$(mib "$(gpu free 0)")" -lt "$mib" ]; do
    mib=$((mib / 2))
  done
  run gpuledger grant --memory "$(size $mib)" --gpu 0 --label memory
  held=$(reference)
  id=${held%.*}
  bundle memory
  programs memory
  annotate memory "$held"
  real_gpu || book memory
  say "The image has a C library and a program that asks libcuda for memory; of the driver it has nothing."
  run gpuledger-runtime --root run run --detach --bundle memory memory
  say "The driver's libraries are there, in front of them the shim. $mib MiB are all that there is:"
  run gpuledger-runtime --root run exec memory nvidia-smi
  grep -qE "/ *${mib} ?MiB" said || die "nvidia-smi should show $mib MiB"
  say "What goes beyond the grant is out of memory (2 is CUDA_ERROR_OUT_OF_MEMORY), and the program goes on:"
  run gpuledger-runtime --root run exec memory gpu total $((mib + 1)) $((mib / 2))
  says "GPU 0 total $mib MiB (0)"
  says "$((mib + 1)) MiB: 2"
  says "$((mib / 2)) MiB: 0"
  say "A grant shrinks and grows while its container runs:"
  run gpuledger grant --update "$id" --memory "$(size $((mib / 2)))"
  run gpuledger-runtime --root run exec memory gpu total
  says "GPU 0 total $((mib / 2)) MiB (0)"
  run gpuledger grants
  says library
  run gpuledger-runtime --root run delete --force memory
  run gpuledger release "$id"
}

# modes: five GPUs of one node in five modes, at one moment.
modes() {
  local mode args served i
  chapter "8. Five GPUs, five modes, one node"
  say "A larger node: five GPUs, the last of them cut into MIG devices. A GPU takes the mode of its first grant. Mode mps needs gpuledgerd, which runs an MPS daemon for it."
  mkdir -p modes
  cd modes
  ln -s ../driver ../gpu ../work ../run .
  write_config simulated "$PWD/gpus.json" "$PWD/driver"
  printf '[daemon]\nlisten = ""\ninterval = "100ms"\n' >>config.toml
  export GPULEDGER_CONFIG=$PWD/config.toml
  gpuledger inventory simulate --gpus 5 --memory 80GiB --name "A100-SXM4-80GB" --out whole.json
  jq '.gpus[4].mig = ["1g.10gb", "3g.40gb"]' whole.json >gpus.json
  gpuledger inventory refresh >/dev/null
  gpuledgerd --nri off >gpuledgerd.log 2>&1 &
  served=$!
  while read -r mode args; do
    # shellcheck disable=SC2086 # words
    run gpuledger grant --mode "$mode" $args --label "$mode"
    bundle "$mode"
    [ "$mode" != limit ] || programs limit
    annotate "$mode" "$(reference)"
  done <<'GRANTS'
exclusive --gpu 0
timeslice --memory 20GiB --gpu 1
limit --memory 20GiB --gpu 2
mps --memory 20GiB --compute 25 --gpu 3
mig --profile 3g.40gb
GRANTS
  for ((i = 0; i < 1200; i++)); do # the daemon has to prove its limits before a client may start
    ! gpuledger explain --bundle mps >/dev/null || break
    sleep 0.1
  done
  for mode in exclusive timeslice limit mps mig; do
    run gpuledger-runtime --root run run --detach --bundle "$mode" "$mode"
  done
  run gpuledger grants
  for mode in none library server hardware; do
    says " $mode "
  done
  say "STRENGTH says what holds a container to its grant; docs/strength.md says what each word is worth. Who asks for a GPU in another mode hears who has it:"
  refused mode-conflict gpuledger grant --mode timeslice --memory 1GiB --gpu 3
  says "GPU 3 is in mode mps, held by g-"
  for mode in exclusive timeslice limit mps mig; do
    gpuledger-runtime --root run delete --force "$mode"
  done
  gpuledger grants --json | jq -r '.grants[].id' | xargs gpuledger release >/dev/null
  say "With its last grant a GPU gives its mode up:"
  run gpuledger gpus
  [ "$(gpuledger gpus --json | jq '[.gpus[] | select(.mode != "" and .mode != "mig")] | length')" = 0 ] || die "a GPU is still in a mode"
  for ((i = 0; i < 1200; i++)); do # it ends its MPS daemon when that has no client left
    [ -n "$(ls bindings/mps)" ] || break
    sleep 0.1
  done
  [ -z "$(ls bindings/mps)" ] || die "an MPS daemon is left"
  kill "$served"
  wait "$served" || true
  cd ..
}

# wait_until_free: a killed process takes a moment to be gone.
wait_until_free() {
  local i
  for ((i = 0; i < 600; i++)); do
    gpuledger grants --json | jq -e 'all(.grants[]; .state == "free")' >/dev/null && return
    sleep 0.1
  done
  gpuledger grants >&2
  die "a grant is still in use after its container is gone"
}

case ${1:-} in
  '') outside ;;
  inside) story ;;
  *) die "it takes no arguments" ;;
esac
