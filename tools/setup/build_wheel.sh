#!/usr/bin/env bash
# Builds dist/inferscale-*.whl with the libraries it needs inside, and prints its path.
# INFERSCALE_PYTHON names the Python it is for, python3 if it is not set.
set -euo pipefail
# shellcheck source=tools/setup/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

python=$("$REPOSITORY_ROOT/tools/setup/python.sh" requirements_wheel.txt)
tools=$(dirname "$python")
build="$REPOSITORY_ROOT/build/wheel"
mkdir -p "$build" "$REPOSITORY_ROOT/dist"
rm -rf "$build/raw" "$build/repaired"
say "building the wheel"
PATH="$tools:$PATH" "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps \
  --no-build-isolation --config-settings "build-dir=$build/{wheel_tag}" \
  --wheel-dir "$build/raw" "$REPOSITORY_ROOT/python" </dev/null >&2
PATH="$tools:$PATH" "$tools/auditwheel" repair --wheel-dir "$build/repaired" "$build"/raw/*.whl \
  </dev/null >"$build/auditwheel.log" 2>&1 || {
  cat "$build/auditwheel.log" >&2
  fail "the wheel could not be made independent of this machine's libraries"
}
rm -f "$REPOSITORY_ROOT"/dist/inferscale-*.whl
mv "$build"/repaired/*.whl "$REPOSITORY_ROOT/dist/"
printf '%s\n' "$REPOSITORY_ROOT"/dist/inferscale-*.whl
