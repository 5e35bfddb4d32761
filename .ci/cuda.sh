#!/usr/bin/env bash
# Compiles csrc/cuda for every GPU that is supported, prints what the kernels take, and builds
# gradcomp/_gpu_ops.so, which is loaded on this machine, in tensorflow and tensorflow-cpu. Without a
# CUDA toolkit, installs one under .venvs/cuda or, with --if-found, says that this was left out.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

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

bin=$(find_nvcc)
if [[ -z $bin && ${1:-} == --if-found ]]; then
  echo "cuda: left out, since there is no nvcc of CUDA 13; make cuda installs one (300 MB in .venvs/cuda)"
  exit
fi
if [[ -z $bin ]]; then
  install cuda-toolkit "cuda: installing nvcc in .venvs/cuda (300 MB) ..." "${TOOLKIT[@]}"
  bin=$(find_nvcc)
fi
export PATH=$bin:$PATH
if ! command -v cuobjdump >/dev/null || ! command -v nvdisasm >/dev/null; then
  install cuda-dumpers "cuda: installing the disassembler in .venvs/cuda (6 MB) ..." "${DUMPERS[@]}"
  export PATH=$PATH:$(echo "$TOOLS"/lib/python3*/site-packages/nvidia/cu13/bin)
fi

FLAGS="-std=c++17 -O3 --fmad=false -Xcompiler -fPIC -Xptxas -v -Werror all-warnings"
for arch in 75 80 86 89 90 100 120; do FLAGS+=" -gencode arch=compute_$arch,code=sm_$arch"; done
export FLAGS+=" -gencode arch=compute_120,code=compute_120"
export SETTINGS="$FLAGS $(nvcc --version | tail -n 1) $(digest csrc/core/*.h csrc/cuda/*.h)"
export -f compile digest

echo "cuda: compiling with $bin/nvcc (about 2 minutes after a change) ..."
logged cuda "The log names the file and line; g++ compiles the same files in the tests." compile_all
python -m bench.cuda_table "$OUT"

build_ops() {
  rm -f "$OUT/libgradcomp_cuda.a"
  ar rcs "$OUT/libgradcomp_cuda.a" "$OUT"/*.o
  cmake -S . -B build/gpu-ops -G Ninja -DPython_EXECUTABLE="$VENV/bin/python" -DGRADCOMP_CUDA=ON \
    -DGRADCOMP_CUDA_LIBRARY="$OUT/libgradcomp_cuda.a"
  cmake --build build/gpu-ops --target gradcomp_gpu_ops --parallel "$(nproc)"
}

make_cpu_venv() {
  python -m venv --clear "$CPU_VENV"
  "$CPU_VENV/bin/python" -m pip install "tensorflow-cpu==$TENSORFLOW_VERSION" rich
}

echo "cuda: building gradcomp/_gpu_ops.so (1 minute the first time) ..."
logged gpu-ops "The log names the file and line." build_ops
readonly CPU_VENV=$ROOT/.venvs/tf-cpu-$TENSORFLOW_VERSION
[[ -x $CPU_VENV/bin/python ]] || rm -f "$STAMPS/tf-cpu"
stamped tf-cpu "$CPU_VENV" "cuda: installing tensorflow-cpu $TENSORFLOW_VERSION in .venvs (about 1 minute) ..." \
  "The wheel comes from pip's configured index." make_cpu_venv
for venv in "$VENV" "$CPU_VENV"; do
  TF_CPP_MIN_LOG_LEVEL=2 PYTHONPATH=$ROOT "$venv/bin/python" tests/gpu_library_loads.py 2>/dev/null || {
    echo "cuda: gradcomp/_gpu_ops.so does not work in $venv; run tests/gpu_library_loads.py there"
    exit 1
  }
done
