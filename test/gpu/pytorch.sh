# pytorch.sh: PyTorch, where this machine has it.
# For ../test-gpu.sh, which has the functions that the chapters share.
# shellcheck shell=bash disable=SC2154 # each, long, part and status are set there

# pytorch: where this machine has it, in an image that is the machine's own file system: the grant is the GPU, its normal error beyond it, and on.
pytorch() {
  local python name
  chapter "PyTorch"
  python=$(command -v python3 || :)
  if [ -z "$python" ] || ! "$python" -c 'import torch; assert torch.cuda.is_available()' >/dev/null 2>&1; then
    skipped "PyTorch" "this machine has none that sees the GPU"
    return
  fi
  mkdir upper
  mount -t tmpfs tmpfs upper # what is written over the machine's own files; not below them
  mkdir upper/files upper/work
  for name in default expandable_segments:True backend:cudaMallocAsync; do
    start torch --memory "${part}MiB"
    run gpuledger-runtime --root run delete --force torch
    mount -t overlay -o "lowerdir=/,upperdir=$PWD/upper/files,workdir=$PWD/upper/work" overlay torch/rootfs
    mkdir -p torch/rootfs/tmp/story
    cp "$OLDPWD/test/testdata/story.py" torch/rootfs/tmp/story
    edit torch ".process.env += [\"PYTORCH_CUDA_ALLOC_CONF=${name/default/}\", \"HOME=/tmp\"] | .process.args = [\"$python\", \"/tmp/story/story.py\", \"$part\", \"$each\"]"
    run gpuledger-runtime --root run run --bundle torch torch
    result "PyTorch, $name"
    umount torch/rootfs
    run gpuledger release "$(cut -d. -f1 torch.grant)"
    rm -rf --one-file-system torch
  done
  run "$python" "$OLDPWD/test/testdata/story.py" 0 "$each"
  result "PyTorch natively"
}
