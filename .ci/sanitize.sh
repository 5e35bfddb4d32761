#!/usr/bin/env bash
# Runs the kernel tests, in C++ and in Python, with AddressSanitizer and UndefinedBehaviorSanitizer,
# and the C++ tests that use several threads with ThreadSanitizer.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly THREADED=(threads_test kernel_sweep_baseline) # what ThreadSanitizer is for

configure() { # FOLDER SANITIZERS OPTION...
  local folder=$1 sanitizers=$2
  shift 2
  cmake -S . -B "$folder" -G Ninja -DGRADCOMP_SANITIZE="$sanitizers" "$@"
}
build_in() { cmake --build "$1" --parallel "$(nproc)" "${@:2}"; } # FOLDER OPTION...

# For Python one instruction set, since a library that chooses between several does so while it is
# loaded, before the sanitizer is ready.
build() {
  configure build/sanitize ON -DGRADCOMP_NATIVE_TESTS=ON
  configure build/sanitize-threads thread -DGRADCOMP_NATIVE_TESTS=ON
  configure build/sanitize-python ON -DGRADCOMP_ISA=baseline -DPython_EXECUTABLE="$VENV/bin/python"
  configure build/sanitize-cuda ON -DGRADCOMP_EMULATED_CUDA=ON
  build_in build/sanitize
  build_in build/sanitize-threads --target "${THREADED[@]}"
  build_in build/sanitize-python
  build_in build/sanitize-cuda --target emulated_cuda
}

echo "sanitize: building the kernels with sanitizers (about 1 minute the first time) ..."
logged sanitize "Compiler errors are shown by make setup, too." build
ctest --test-dir build/sanitize --no-tests=error --output-on-failure --parallel "$(nproc)"
ctest --test-dir build/sanitize-threads --no-tests=error --output-on-failure --tests-regex "$(IFS='|' && echo "${THREADED[*]}")"

# The sweeps above have every CPU kernel at every length and alignment, on values of all kinds. What Python adds is
# what calls them, with threads and damaged payloads; and the CUDA kernels. Other files repeat the sweeps, or run nothing instrumented.
tests=(tests/test_kernels_{arguments,bits,cast,dropout,quantize,scaled,threads,topk}.py
  tests/test_cuda_{arguments,bits,cast,dropout,emulation,scaled,topk}.py)

# Python itself is not instrumented, so the sanitizer has to be loaded before it, and libstdc++ for
# the sanitizer to see exceptions. What Python leaks at its exit is not ours.
libraries=$(for name in libasan libubsan libstdc++; do g++ -print-file-name=$name.so; done | paste -sd:)
LD_PRELOAD=$libraries ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
  GRADCOMP_TEST_LIBRARIES=$ROOT/build/sanitize-python/gradcomp \
  EMULATED_CUDA=$ROOT/build/sanitize-cuda/tests/cuda/libemulated_cuda.so \
  python -m pytest -q -n "$(nproc)" --dist worksteal -p no:cacheprovider --capture=no "${tests[@]}"
