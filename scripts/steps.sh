# shellcheck shell=bash
# Sourced by check, demo, nightly and gpu_check: named steps with a log each, and a memory of what failed and why
# something was skipped. Not a program of its own.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
repo=$PWD
steps_failed=()
steps_skipped=()
steps_logs=${steps_logs:-$repo/build/logs}
mkdir -p "$steps_logs"

# A developer's switches must not change what a script measures or checks.
for name in $(compgen -e | grep '^ASSAY_' || true); do unset "$name"; done

# One compile job per core, but no more than one per 1.5 GiB of memory.
jobs=$(nproc)
memory_jobs=$(awk '/MemAvailable/ {print int($2 / 1572864)}' /proc/meminfo)
if [ "$memory_jobs" -lt "$jobs" ]; then jobs=$((memory_jobs > 0 ? memory_jobs : 1)); fi

# The first python3 that has numpy and matplotlib: a version manager's python3 on PATH often has neither.
python=
for candidate in "$(command -v python3 || true)" /usr/bin/python3; do
  if [ -x "$candidate" ] && "$candidate" -c 'import numpy, matplotlib' 2> /dev/null; then
    python=$candidate
    break
  fi
done
python=${python:-/usr/bin/python3}

say() { printf '%s\n' "$*"; }

# step NAME COMMAND..: runs the command with its output in a log; on failure prints the log's end and remembers it.
step() {
  local name=$1 log=$steps_logs/$1.log start=$SECONDS rc=0
  shift
  printf '  %-28s ' "$name"
  "$@" > "$log" 2>&1 < /dev/null || rc=$?
  if [ "$rc" -eq 0 ]; then
    printf 'ok      %4d s\n' $((SECONDS - start))
  else
    printf 'FAILED  %4d s  (exit %d, log: %s)\n' $((SECONDS - start)) "$rc" "${log#"$repo"/}"
    tail -n "${STEP_TAIL:-60}" "$log" | sed 's/^/    | /'
    steps_failed+=("$name")
  fi
  return "$rc"
}

# skip NAME REASON
skip() {
  printf '  %-28s skipped: %s\n' "$1" "$2"
  steps_skipped+=("$1: $2")
}

# configure PRESET [FLAGS..]: skips the work when the build folder is already configured; ninja reconfigures by itself.
configure() {
  local preset=$1
  shift
  cmake --preset "$preset" -DPython3_EXECUTABLE="$python" "$@"
}

# The CUDA compiler, or nothing. A toolkit outside PATH is common.
find_nvcc() {
  command -v nvcc || { [ -x /usr/local/cuda/bin/nvcc ] && echo /usr/local/cuda/bin/nvcc; } || true
}

# Why CUDA sources cannot be compiled here, in words; empty when they can.
why_no_cuda() {
  local nvcc version
  nvcc=$(find_nvcc)
  if [ -z "$nvcc" ]; then
    echo "no CUDA toolkit (nvcc) on this machine; the host build is complete without it"
    return
  fi
  version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  if ! awk -v v="$version" 'BEGIN {split(v, a, "."); exit !(a[1] > 12 || (a[1] == 12 && a[2] >= 8))}'; then
    echo "CUDA toolkit $version found, 12.8 or newer is needed"
  fi
}
