#!/usr/bin/env bash
# The unit tests and a part of the integration tests on other versions of Python (scripts/fetch_pythons.py).
#   PYTHON=.venv/bin/python scripts/matrix_pythons.sh [words for pytest]
# Each version gets a virtual environment in .cache/matrix, made from the lock file; all are run, and the exit code says
# whether all passed. PYTHON_VERSIONS and PYTHON_TESTS choose others.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
servers=${CONQUIET_SERVERS_DIR:-$PWD/.servers}
versions=${PYTHON_VERSIONS:-3.13 3.14}
tests=${PYTHON_TESTS:-tests/unit tests/integration/queue tests/integration/processor tests/integration/transactional tests/integration/app}
failed=()

for version in $versions; do
  folder=.cache/matrix/python$version
  printf '\n== Python %s\n' "$version"
  if [ ! -e "$folder/.ready" ]; then
    "$python" scripts/fetch_pythons.py --into "$servers" "$version" --environment "$folder" &&
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
