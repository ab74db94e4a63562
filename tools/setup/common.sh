# Helpers of the set-up scripts. Sourced, not run.
# shellcheck shell=bash

set -euo pipefail

REPOSITORY_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE_DIR=${INFERSCALE_CACHE_DIR:-${HOME:?HOME is not set}/.cache/inferscale}
# shellcheck source=tools/setup/pins.sh
source "$REPOSITORY_ROOT/tools/setup/pins.sh"

say() { printf 'inferscale: %s\n' "$*" >&2; }
fail() {
  printf 'inferscale: error: %s\n' "$*" >&2
  exit 1
}

sha256_of() { sha256sum -- "$1" | cut -d' ' -f1; }

# has_sha256 FILE SHA256
has_sha256() { [[ -f $1 && $(sha256_of "$1") == "$2" ]]; }

# A stamp beside a verified file spares hashing it again while size and time stay the same.
file_state() { stat -c '%s %Y' -- "$1"; }
# is_verified FILE SHA256
is_verified() {
  [[ -f $1 && -f $1.verified && $(cat -- "$1.verified") == "$2 $(file_state "$1")" ]] && return 0
  has_sha256 "$1" "$2" || return 1
  printf '%s %s\n' "$2" "$(file_state "$1")" >"$1.verified"
}

# Runs the rest of the calling script alone; the kernel releases the lock however the process ends.
# hold_lock NAME
hold_lock() {
  mkdir -p "$CACHE_DIR"
  exec {lock_descriptor}>"$CACHE_DIR/$1.lock"
  if ! flock --nonblock "$lock_descriptor"; then
    say "waiting for another process that holds $CACHE_DIR/$1.lock"
    flock "$lock_descriptor"
  fi
}

# Makes a scratch folder in the cache, on the same file system as the final places, and removes it
# at exit. What an earlier killed run left is removed first: call it under the lock.
# scratch_folder NAME
scratch_folder() {
  SCRATCH="$CACHE_DIR/tmp/$1"
  rm -rf -- "$SCRATCH"
  mkdir -p "$SCRATCH"
  trap 'rm -rf -- "$SCRATCH"' EXIT
}
