#!/usr/bin/env bash
# Compiles csrc/cuda for every GPU that is supported, and prints what the kernels take. Without a
# CUDA toolkit, installs one under .venvs/cuda or, with --if-found, says that this was left out.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$ROOT/.ci/nvcc.sh"

export OUT=$ROOT/build/cuda

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
require_nvcc
export PATH=$bin:$PATH
if ! command -v cuobjdump >/dev/null || ! command -v nvdisasm >/dev/null; then
  install cuda-dumpers "cuda: installing the disassembler in .venvs/cuda (6 MB) ..." "${DUMPERS[@]}"
  export PATH=$PATH:$(echo "$TOOLS"/lib/python3*/site-packages/nvidia/cu13/bin)
fi

FLAGS="-std=c++17 -O3 --fmad=false -Xptxas -v -Werror all-warnings"
for arch in 75 80 86 89 90 100 120; do FLAGS+=" -gencode arch=compute_$arch,code=sm_$arch"; done
export FLAGS+=" -gencode arch=compute_120,code=compute_120"
export SETTINGS="$FLAGS $(nvcc --version | tail -n 1) $(digest csrc/core/*.h csrc/cuda/*.h)"
export -f compile digest

echo "cuda: compiling with $bin/nvcc (about 1 minute after a change) ..."
logged cuda "The log names the file and line; g++ compiles the same files in the tests." compile_all
python -m bench.cuda_table "$OUT"
.ci/cuda_extension.sh
