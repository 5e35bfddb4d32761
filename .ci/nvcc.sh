# Sourced after common.sh: nvcc, found or installed under .venvs/cuda, and what it makes of csrc/cuda.
readonly TOOLS=$ROOT/.venvs/cuda
readonly TOOLKIT=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-runtime==13.0.88 nvidia-cuda-cccl==13.0.85)
readonly DUMPERS=(nvidia-cuda-cuobjdump==13.2.86 nvidia-cuda-nvdisasm==13.2.86)
export OUT=$ROOT/build/cuda

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

# compile FILE: into $OUT, unless what it depends on is unchanged since.
compile() {
  local object key
  object=$OUT/$(basename "$1" .cu)
  key="$SETTINGS $(digest "$1")"
  [[ -f $object.key && $(<"$object.key") == "$key" ]] && return
  rm -f "$object.key"
  # shellcheck disable=SC2086
  nvcc $FLAGS -Icsrc -c "$1" -o "$object.o" 2>"$object.log" || {
    cat "$object.log"
    return 1
  }
  echo "$key" >"$object.key"
}

compile_all() {
  local object
  mkdir -p "$OUT"
  for object in "$OUT"/*.o; do
    [[ -e csrc/cuda/$(basename "$object" .o).cu ]] || rm -f "${object%.o}".{o,log,key}
  done
  printf '%s\n' csrc/cuda/*.cu | xargs -n 1 -P "$(nproc)" bash -c 'compile "$0"'
}

# Compiles into $OUT, for every GPU, with the nvcc in $bin.
compile_kernels() {
  export PATH=$bin:$PATH
  local arch
  FLAGS="-std=c++17 -O3 --fmad=false -Xptxas -v -Xcompiler=-fPIC,-fvisibility=hidden"
  # Another compiler may warn of what this one does not.
  [[ $(nvcc --version) != *"release 13."* ]] || FLAGS+=" -Werror all-warnings"
  for arch in 75 80 86 89 90 100 120; do FLAGS+=" -gencode arch=compute_$arch,code=sm_$arch"; done
  export FLAGS+=" -gencode arch=compute_120,code=compute_120"
  export SETTINGS="$FLAGS $(nvcc --version | tail -n 1) $(digest csrc/core/*.h csrc/cuda/*.h)"
  export -f compile digest

  echo "cuda: compiling with $bin/nvcc (about 1 minute after a change) ..."
  logged cuda "The log names the file and line; g++ compiles the same files in the tests." compile_all
}
