#!/usr/bin/env bash
# Generates the tests' tiny models with the pinned Python packages.
#   make_tiny_models.sh OUTPUT_FOLDER
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=$("$root/tools/setup/python.sh")
exec env PYTHONDONTWRITEBYTECODE=1 "$python" "$root/tests/models/make_tiny_models.py" --out "$1"
