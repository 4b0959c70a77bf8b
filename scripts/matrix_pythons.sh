#!/usr/bin/env bash
# The unit tests and a part of the integration tests on other versions of Python. 3.13 and 3.14 are fetched
# (scripts/fetch_pythons.py). Debian has no 3.12 any more: that one is run if this machine has it, in PATH or by pyenv.
#   PYTHON=.venv/bin/python scripts/matrix_pythons.sh [words for pytest]
# Each version gets a virtual environment in .cache/matrix, made from the lock file; all are run, and the exit code says
# whether all passed. PYTHON_VERSIONS and PYTHON_TESTS choose others.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
servers=${CONQUIET_SERVERS_DIR:-$PWD/.servers}
versions=${PYTHON_VERSIONS:-3.12 3.13 3.14}
tests=${PYTHON_TESTS:-tests/unit tests/integration/queue tests/integration/processor tests/integration/transactional tests/integration/app}
failed=()

# installed VERSION: print the interpreter of that version that this machine has, if there is one.
installed() {
  local found
  for found in "$(command -v "python$1")" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if [ -x "$found" ] && "$found" -c 'import sqlite3, ssl, venv' 2>/dev/null; then
      echo "$found"
      return
    fi
  done
}

# environment VERSION FOLDER: make a virtual environment without pip.
environment() {
  local found
  if [ "$1" = 3.12 ]; then
    found=$(installed "$1")
    [ -n "$found" ] && "$found" -m venv --without-pip --clear "$2"
  else
    "$python" scripts/fetch_pythons.py --into "$servers" "$1" --environment "$2"
  fi
}

for version in $versions; do
  folder=.cache/matrix/python$version
  printf '\n== Python %s\n' "$version"
  if [ "$version" = 3.12 ] && [ -z "$(installed 3.12)" ]; then
    echo "left out: this machine has none, and Debian's suites neither"
    continue
  fi
  if [ ! -e "$folder/.ready" ]; then
    environment "$version" "$folder" &&
      "$python" -m pip --python "$folder/bin/python" install --quiet -r requirements-dev.lock &&
      "$python" -m pip --python "$folder/bin/python" install --quiet --no-deps --no-build-isolation --editable . &&
      touch "$folder/.ready" || { failed+=("Python $version: no environment"); continue; }
  fi
  # shellcheck disable=SC2086 # several folders
  PATH=$PWD/$folder/bin:$PATH "$folder/bin/python" -m pytest -q $tests "$@" || failed+=("Python $version")
done

if [ ${#failed[@]} -gt 0 ]; then
  printf '\nfailed: %s\n' "${failed[@]}"
  exit 1
fi
printf '\nevery version of Python passed\n'
