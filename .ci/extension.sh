#!/usr/bin/env bash
# Builds the C++ part in build/dev, incrementally; CMake writes the libraries beside the Python files.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build() {
  [[ -f build/dev/build.ninja ]] || cmake -S . -B build/dev -G Ninja -DPython_EXECUTABLE="$VENV/bin/python"
  cmake --build build/dev --parallel "$(nproc)"
}

if [[ -f build/dev/build.ninja ]] && ninja -C build/dev -n | grep -q 'no work to do'; then exit 0; fi
echo "[5/5] building the extension (about 1 minute the first time) ..."
logged extension "After a change of compiler or Python, run make clean first." build
