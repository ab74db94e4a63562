#!/usr/bin/env bash
# Downloads one file of a Python package into the cache and checks its SHA-256.
#   fetch_package.sh NAME==VERSION FILE SHA256
# Prints the file's path as the only line of output. The file gets its name only once it is whole.
set -euo pipefail
# shellcheck source=tools/setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

requirement=$1
file=$2
sha256=$3
target="$CACHE_DIR/downloads/$file"

if ! is_verified "$target" "$sha256"; then
  hold_lock "download-$file"
  if ! is_verified "$target" "$sha256"; then
    scratch_folder "download-$file"
    form=(--only-binary :all:)
    # pip asks a source package's build backend for metadata; that one is pinned in requirements.txt,
    # where build isolation would fetch an unpinned one.
    [[ $file != *.tar.gz ]] || form=(--no-binary "${requirement%%==*}" --no-build-isolation)
    say "downloading $file"
    printf '%s --hash=sha256:%s\n' "$requirement" "$sha256" >"$SCRATCH/requirements.txt"
    "$("$REPOSITORY_ROOT/tools/setup/python.sh")" -m pip download --quiet --no-deps \
      --disable-pip-version-check --require-hashes "${form[@]}" \
      --requirement "$SCRATCH/requirements.txt" --dest "$SCRATCH" </dev/null >&2 ||
      fail "could not download $requirement; see pip's message above"
    has_sha256 "$SCRATCH/$file" "$sha256" || fail "$file does not have the expected SHA-256 $sha256"
    mkdir -p "$CACHE_DIR/downloads"
    mv -- "$SCRATCH/$file" "$target"
    is_verified "$target" "$sha256"
  fi
fi
printf '%s\n' "$target"
