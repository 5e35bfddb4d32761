#!/usr/bin/env bash
# Checks for the system's own packages, and installs those missing where it may (root, with apt).
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

python=${PYTHON:-python3}
required=() optional=()
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || {
  echo "gradcomp needs Python 3.10 or newer; set PYTHON=/path/to/python3 to choose one."
  exit 1
}
"$python" -c 'import ensurepip, venv' 2>/dev/null || required+=(python3-venv)
"$python" -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' 2>/dev/null || required+=(python3-dev)
command -v g++ >/dev/null || required+=(g++)
command -v make >/dev/null || required+=(make)
[[ -d /usr/share/datasets/fashion-mnist ]] || optional+=(dataset-fashion-mnist)
[[ -f /usr/include/simde/x86/avx512.h ]] || optional+=(libsimde-dev)
command -v ip >/dev/null || optional+=(iproute2)
command -v ccache >/dev/null || optional+=(ccache)
command -v mpicxx >/dev/null || optional+=(libopenmpi-dev openmpi-bin)

missing=("${required[@]}" "${optional[@]}")
((${#missing[@]})) || exit 0
if ((EUID == 0)) && command -v apt-get >/dev/null; then
  echo "[1/5] installing Debian packages: ${missing[*]}"
  apt_install() { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; }
  logged system "Install by hand: apt-get install ${missing[*]}" apt_install "${missing[@]}" || ((${#required[@]} == 0))
elif ((${#required[@]})); then
  echo "[1/5] missing: ${required[*]}. Type: sudo apt-get install ${missing[*]}"
  exit 1
else
  echo "[1/5] going on without ${optional[*]} (sudo apt-get install ${optional[*]})"
fi
