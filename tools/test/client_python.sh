#!/usr/bin/env bash
# Runs a Python program with the packages of tools/setup/requirements_clients.txt.
#   client_python.sh SCRIPT [ARGUMENT...]
set -euo pipefail
python=$("$(dirname "${BASH_SOURCE[0]}")/../setup/python.sh" requirements_clients.txt)
exec "$python" "$@"
