#!/usr/bin/env bash
# Fetches llama.cpp's pinned source into the cache; prints its folder as the only line of output.
# The hash-pinned source package comes first because one SHA-256 covers all of it and any package
# mirror serves it; git, by the full commit, is the other way.
set -euo pipefail
# shellcheck source=tools/setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

target="$CACHE_DIR/llama-source/$LLAMA_COMMIT"
if [[ ! -f $target/include/llama.h ]]; then
  hold_lock llama-source
  if [[ ! -f $target/include/llama.h ]]; then
    scratch_folder llama-source
    mkdir -p "$CACHE_DIR/llama-source"
    if sdist=$("$REPOSITORY_ROOT/tools/setup/fetch_package.sh" "$LLAMA_SDIST_REQUIREMENT" \
      "$LLAMA_SDIST_FILE" "$LLAMA_SDIST_SHA256"); then
      tar -xzf "$sdist" -C "$SCRATCH" "$LLAMA_SDIST_TREE"
      mv -- "$SCRATCH/$LLAMA_SDIST_TREE" "$target"
      rm -f -- "$sdist" "$sdist.verified"
    else
      say "fetching llama.cpp $LLAMA_COMMIT with git"
      git -c init.defaultBranch=main init -q "$SCRATCH/git"
      git -C "$SCRATCH/git" -c http.lowSpeedLimit=1000 -c http.lowSpeedTime=30 \
        fetch -q --depth 1 "$LLAMA_REPOSITORY" "$LLAMA_COMMIT" </dev/null ||
        fail "llama.cpp's source could not be fetched; put a copy of commit $LLAMA_COMMIT on this" \
          "machine and set INFERSCALE_LLAMA_SOURCE_DIR to it"
      git -C "$SCRATCH/git" checkout -q FETCH_HEAD
      [[ $(git -C "$SCRATCH/git" rev-parse HEAD) == "$LLAMA_COMMIT" ]] ||
        fail "git returned another commit than $LLAMA_COMMIT"
      rm -rf -- "$SCRATCH/git/.git"
      mv -- "$SCRATCH/git" "$target"
    fi
  fi
fi
printf '%s\n' "$target"
