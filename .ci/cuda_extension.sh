#!/usr/bin/env bash
# Builds gradcomp._cuda and gradcomp._native into the checkout, without TensorFlow, for the Python that
# PYTHON names: by default .venv's, or python3 where there is no .venv.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$ROOT/.ci/nvcc.sh"

readonly BUILD=$ROOT/build/cuda-extension
readonly ADVICE="It needs g++, and the headers of this Python (python3-dev in Debian and Ubuntu)."

python=${PYTHON:-$([[ -x $VENV/bin/python ]] && echo "$VENV/bin/python" || echo python3)}
python=$("$python" -c 'import sys; print(sys.executable)')
if ! "$python" -c 'import numpy, rich' 2>/dev/null; then
  echo "      $python lacks what gradcomp imports. Type: $python -m pip install 'numpy>=1.26' rich"
  exit 1
fi

require_nvcc
mkdir -p "$BUILD"
echo 'cmake_minimum_required(VERSION 3.25)' >"$BUILD/version.cmake"
if ! { "$python" -m pybind11 --cmakedir && command -v ninja && cmake -P "$BUILD/version.cmake"; } >/dev/null 2>&1; then
  install cuda-build "cuda: installing CMake and pybind11 in .venvs/cuda ..." 'cmake>=3.25' ninja 'pybind11>=2.13'
  export PATH=$TOOLS/bin:$PATH
  pybind11=$("$TOOLS/bin/python" -m pybind11 --cmakedir)
fi

build() {
  cmake -S . -B "$BUILD" -G Ninja -DGRADCOMP_CUDA=ON -DCMAKE_CUDA_COMPILER="$bin/nvcc" \
    -DGRADCOMP_CUDA_OBJECTS="$OUT" \
    -DPython_EXECUTABLE="$python" ${pybind11:+-Dpybind11_DIR="$pybind11"}
  cmake --build "$BUILD" --parallel "$(nproc)" --target _native _cuda
}

# Another Python or compiler than last time: CMake keeps what it found.
key="$python $bin"
[[ -f $BUILD/key && $(<"$BUILD/key") == "$key" ]] || rm -rf "$BUILD"
mkdir -p "$BUILD"
echo "$key" >"$BUILD/key"
echo "cuda: building gradcomp._cuda for $python (about 1 minute the first time) ..."
logged cuda-extension "$ADVICE" build
"$python" - <<'END'
from gradcomp import cuda

count, why = cuda.devices()
print(f"cuda: {cuda.load().__file__} is there; GPUs: {count or f'none ({why})'}")
END
