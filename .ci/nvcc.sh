# Sourced after common.sh: nvcc, found or installed under .venvs/cuda.
readonly TOOLS=$ROOT/.venvs/cuda
readonly TOOLKIT=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-runtime==13.0.88 nvidia-cuda-cccl==13.0.85)
readonly DUMPERS=(nvidia-cuda-cuobjdump==13.2.86 nvidia-cuda-nvdisasm==13.2.86)

# Prints the folder of the first nvcc that knows all our GPUs.
find_nvcc() {
  local folder
  for folder in "$(dirname "$(command -v nvcc || echo /none/nvcc)")" "${CUDA_HOME:-/none}/bin" \
    "$TOOLS"/lib/python3*/site-packages/nvidia/cu13/bin; do
    if [[ -x $folder/nvcc ]] && "$folder/nvcc" --list-gpu-arch | grep -qx compute_120; then
      echo "$folder"
      return
    fi
  done
}

# install NAME TITLE PACKAGE...
install() {
  local name=$1 title=$2
  shift 2
  if [[ ! -x $TOOLS/bin/python ]]; then
    rm -f "$STAMPS"/cuda-*
    python3 -m venv --clear "$TOOLS"
  fi
  stamped "$name" "$ROOT $*" "$title" "The packages come from pip's configured index." \
    "$TOOLS/bin/python" -m pip install "$@"
}

# Sets `bin` to the folder of an nvcc, which is installed where there is none.
require_nvcc() {
  bin=$(find_nvcc)
  [[ -n $bin ]] && return
  install cuda-toolkit "cuda: installing nvcc in .venvs/cuda (300 MB) ..." "${TOOLKIT[@]}"
  bin=$(find_nvcc)
}
