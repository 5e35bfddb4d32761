#!/usr/bin/env bash
# Compiles csrc/cuda for every GPU that is supported, prints what the kernels take, builds gradcomp._cuda and
# gradcomp/_gpu_ops.so, and loads that on this machine, in tensorflow and tensorflow-cpu. Without a
# CUDA toolkit, installs one under .venvs/cuda. With --if-found, as make test calls it, says that this was
# left out where there is none, and ends with gradcomp._cuda.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$ROOT/.ci/nvcc.sh"

bin=$(find_nvcc)
if [[ -z $bin && ${1:-} == --if-found ]]; then
  echo "cuda: left out, since there is no nvcc of CUDA 13; make cuda installs one (300 MB in .venvs/cuda)"
  exit
fi
require_nvcc
export PATH=$bin:$PATH
if ! command -v cuobjdump >/dev/null || ! command -v nvdisasm >/dev/null; then
  install cuda-dumpers "cuda: installing the disassembler in .venvs/cuda (6 MB) ..." "${DUMPERS[@]}"
  export PATH=$PATH:$(echo "$TOOLS"/lib/python3*/site-packages/nvidia/cu13/bin)
fi

compile_kernels
python -m bench.cuda_table "$OUT"
PYTHON=$VENV/bin/python .ci/cuda_extension.sh # not the one that .venv was made with
if [[ ${1:-} == --if-found ]]; then # what follows takes minutes more, and a download
  echo "cuda: make cuda also builds gradcomp/_gpu_ops.so, and loads it"
  exit
fi

build_ops() {
  cmake -S . -B build/gpu-ops -G Ninja -DPython_EXECUTABLE="$VENV/bin/python" -DGRADCOMP_CUDA=ON \
    -DCMAKE_CUDA_COMPILER="$bin/nvcc" -DGRADCOMP_CUDA_OBJECTS="$OUT"
  cmake --build build/gpu-ops --target gradcomp_gpu_ops --parallel "$(nproc)"
}

make_cpu_venv() {
  python -m venv --clear "$CPU_VENV"
  "$CPU_VENV/bin/python" -m pip install --no-compile "tensorflow-cpu==$TENSORFLOW_VERSION" rich
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
