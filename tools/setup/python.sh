#!/usr/bin/env bash
# Prints the path of a Python that has exactly what a file of tools/setup lists (requirements.txt
# unless another is named), hash-checked, in a virtual environment of the cache; makes it first if
# needed. The system's Python is only read.
#   python.sh [FILE]
set -euo pipefail
# shellcheck source=tools/setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

requirements="$REPOSITORY_ROOT/tools/setup/${1:-requirements.txt}"
base=${INFERSCALE_PYTHON:-python3}
key=$({ cat "$requirements" && "$base" -c 'import sys; print(sys.version, sys.prefix)'; } |
  sha256sum | cut -c1-16)
target="$CACHE_DIR/venv-$key"

if [[ ! -f $target/complete ]]; then
  hold_lock venv
  if [[ ! -f $target/complete ]]; then
    say "making a Python environment in $target"
    # A virtual environment cannot be moved, so it is marked complete at its end instead.
    rm -rf -- "$target"
    "$base" -m venv "$target" >&2 ||
      fail "python3 cannot make virtual environments here (Debian, Ubuntu: apt-get install python3-venv)"
    # Every file lists all that it needs; vLLM's leaves out what a CUDA toolkit or no CPU needs.
    "$target/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
      --no-deps --only-binary :all: --requirement "$requirements" </dev/null >&2 || {
      rm -rf -- "$target"
      fail "could not install $requirements; see pip's message above"
    }
    touch "$target/complete"
  fi
fi
printf '%s\n' "$target/bin/python"
