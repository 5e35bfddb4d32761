#!/usr/bin/env bash
# Loads and runs the ops that are built in gradcomp/ in older TensorFlows, each in a venv of its own under .venvs/.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

versions=(2.15.1 2.18.1)
tests=(tests/test_ops.py tests/test_ops_errors.py tests/test_tf_versions.py)
# Codecs are arguments, which no TensorFlow looks into: those of other widths and formats are left out. Every op, dtype
# and error stays.
left_out="float8_e or sign or quantize-8 or quantize-2"

make_venv() { # FOLDER REQUIREMENT...
  local venv=$1
  shift
  python -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --no-compile "$@" # what is imported is compiled then, a tenth of it
}

for version in "${versions[@]}"; do
  venv=$ROOT/.venvs/tf-$version
  [[ -x $venv/bin/python ]] || rm -f "$STAMPS/tf-$version"
  requirements=("tensorflow-cpu==$version" pytest pytest-xdist rich)
  stamped "tf-$version" "$ROOT ${requirements[*]}" "installing TensorFlow $version (about 1 minute) ..." \
    "The wheel comes from pip's configured index; TensorFlow 2.15 needs Python 3.11 or older." \
    make_venv "$venv" "${requirements[@]}"
  echo "tf-versions: TensorFlow $version"
  # -c /dev/null: pyproject.toml makes warnings errors, and older TensorFlows warn of their own deprecations.
  TF_CPP_MIN_LOG_LEVEL=2 PYTHONPATH=$ROOT "$venv/bin/python" -m pytest -q -n "$(nproc)" --dist loadfile -c /dev/null --rootdir "$ROOT" \
    -p no:cacheprovider -k "not ($left_out)" "${tests[@]}"
done
