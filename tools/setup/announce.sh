#!/usr/bin/env bash
# Says what set-up is about to download, store and take, if anything is left to do.
set -euo pipefail
# shellcheck source=tools/setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

shopt -s nullglob
parts=()
download_mb=0
disk_mb=0
minutes=0
# part NAME DOWNLOAD_MB DISK_MB MINUTES
part() {
  parts+=("$1")
  ((download_mb += $2, disk_mb += $3, minutes += $4)) || true
}
venvs=("$CACHE_DIR"/venv-*/complete)
builds=("$CACHE_DIR"/llama/*/share/complete)
((${#venvs[@]})) || part "a Python environment" 25 110 1
((${#builds[@]})) || part "the llama.cpp library" 0 60 4
[[ -d $CACHE_DIR/llama-source/$LLAMA_COMMIT || -n ${INFERSCALE_LLAMA_SOURCE_DIR:-} ]] ||
  part "llama.cpp's source" 77 240 1
[[ -f $CACHE_DIR/models/$CHAT_MODEL_FILE ]] || part "the chat model" 93 98 1
[[ -f $CACHE_DIR/models/$EMBEDDER_FILE ]] || part "the embedder" 84 46 1
[[ -d $REPOSITORY_ROOT/build/release ]] || part "InferScale's own build" 0 300 4

((${#parts[@]})) || exit 0
joined=$(printf ', %s' "${parts[@]}")
say "still to do: ${joined:2}"
say "that is about $download_mb MB to download, $disk_mb MB of disk and $minutes minutes on 2 cores" \
  "(kept in $CACHE_DIR, done once)"
available_mb=$(df --output=avail -BM "$(dirname "$CACHE_DIR")" 2>/dev/null | tail -n1 | tr -dc 0-9 || true)
if [[ -n $available_mb ]] && ((available_mb < disk_mb + 500)); then
  fail "only $available_mb MB are free for $CACHE_DIR; set INFERSCALE_CACHE_DIR to a folder with more"
fi
