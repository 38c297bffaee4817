# containers.sh: what containers with a grant, and without one, see of the GPU.
# For ../test-gpu.sh, which has the functions that the chapters share.
# shellcheck shell=bash disable=SC2154 # each, long, part and status are set there

# exclusively: the whole driver, and no limit.
exclusively() {
  chapter "A GPU as a whole"
  start whole --mode exclusive
  within whole nvidia-smi -L
  [ "$(grep -c '^ *GPU ' said)" = 1 ] || die "nvidia-smi should list one GPU"
  result "nvidia-smi -L in a container whose image has no file of the driver's"
  within whole gpu total 64
  says "64 MiB: 0"
  result "a CUDA program there (total memory; 64 MiB allocated)"
  finish whole
}

# limited: two containers side by side, each with its share as the GPU.
limited() {
  local name
  chapter "Two containers with $part MiB each"
  for name in one two; do
    start "$name" --memory "${part}MiB"
  done
  for name in one two; do
    within "$name" nvidia-smi
    grep -qE "/ *${part} ?MiB" said || die "nvidia-smi should show $part MiB"
    within "$name" gpu total $((part + 1)) $((part / 2)) $((part / 2 + 1)) 1
    says "GPU 0 total $part MiB (0)"
    says "$((part + 1)) MiB: 2"
    says "$((part / 2)) MiB: 0"
    says "$((part / 2 + 1)) MiB: 2"
    result "container $name with a limit of $part MiB (2 is CUDA_ERROR_OUT_OF_MEMORY)"
  done
  finish one
  finish two
}

# refusals: what the card's own driver must not get to see.
refusals() {
  chapter "Without a grant"
  bundle greedy '.process.env += ["NVIDIA_VISIBLE_DEVICES=all"]'
  refused visible-devices-all gpuledger-runtime --root run run --bundle greedy greedy
  result "NVIDIA_VISIBLE_DEVICES=all without a grant"
}
