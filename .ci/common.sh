# Sourced by every script here: the checkout's paths, the pinned version, and steps that report progress.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly ROOT=$PWD
readonly VENV=$ROOT/.venv
readonly LOGS=$ROOT/build/logs
readonly STAMPS=$VENV/.stamps
readonly TENSORFLOW_VERSION=2.21.0
export PATH=$VENV/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1
# Build folders share what they compile alike, and a new clone finds what the last one compiled.
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
fi

# digest FILE...: one hash of the files' contents.
digest() { cat "$@" | sha256sum | cut -c1-16; }

# seconds N: "42 s" or "1 min 35 s".
seconds() { if (($1 < 60)); then echo "$1 s"; else echo "$(($1 / 60)) min $(($1 % 60)) s"; fi; }

# logged NAME ADVICE COMMAND...: runs COMMAND with its output in a log; on failure shows the log's end and ADVICE.
logged() {
  local name=$1 advice=$2 log=$LOGS/$1.log started=$SECONDS status=0 job
  shift 2
  mkdir -p "$LOGS"
  echo "      log: ${log#"$ROOT"/}"
  set -m # a process group of its own, so that an interrupt ends all of it
  "$@" >"$log" 2>&1 </dev/null &
  job=$!
  set +m
  trap 'kill -- "-$job"; exit 130' INT TERM
  while [[ -t 1 ]] && kill -0 "$job" 2>/dev/null; do
    printf '\r      %s ' "$(seconds $((SECONDS - started)))"
    sleep 1
  done
  wait "$job" || status=$?
  trap - INT TERM
  [[ -t 1 ]] && printf '\r\033[K'
  if ((status)); then
    echo "      FAILED after $(seconds $((SECONDS - started))); the log ends with:"
    tail -n 25 "$log" | sed 's/^/      | /'
    grep -m 1 -niE 'error: ' "$log" | sed 's/^/      first error, at line /' || true
    echo "      $advice"
    return "$status"
  fi
  echo "      done in $(seconds $((SECONDS - started)))"
}

# stamped NAME KEY TITLE ADVICE COMMAND...: as logged, but only where the last success of NAME had another KEY.
stamped() {
  local stamp=$STAMPS/$1 name=$1 key=$2 title=$3
  [[ -f $stamp && $(<"$stamp") == "$key" ]] && return
  echo "$title"
  shift 3
  logged "$name" "$@"
  mkdir -p "$STAMPS"
  echo "$key" >"$stamp"
}
