#!/usr/bin/env bash
# The queue's tests on the oldest, the middle and the newest redis-py that conquiet supports.
#   PYTHON=.venv/bin/python scripts/matrix_redis.sh [words for pytest]
# RESP2 and RESP3, decoded and raw replies are parameters of the tests themselves. Each version gets a virtual
# environment in .cache/matrix, made from the lock file with redis-py exchanged; all are run, the exit code says
# whether all passed.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
versions=${REDIS_PY_VERSIONS:-6.4 7.4 8.1}
failed=()

# environment VERSION: make it unless it is there; prints its interpreter.
environment() {
  local folder=.cache/matrix/redis-py-$1
  if [ ! -e "$folder/.ready" ]; then
    rm -rf "$folder"
    "$python" -m venv "$folder" >&2 &&
      "$folder/bin/python" -m pip install --quiet -r requirements-dev.lock >&2 &&
      "$folder/bin/python" -m pip install --quiet --no-deps "redis==$1.*" >&2 &&
      "$folder/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable . >&2 &&
      touch "$folder/.ready" || return 1
  fi
  echo "$folder/bin/python"
}

for version in $versions; do
  printf '\n== redis-py %s: tests/integration/queue\n' "$version"
  if ! interpreter=$(environment "$version"); then
    failed+=("redis-py $version: no environment")
    continue
  fi
  "$interpreter" -c 'import redis; print("redis-py", redis.__version__)'
  "$interpreter" -m pytest -q tests/unit/queue tests/integration/queue "$@" || failed+=("redis-py $version")
done

if [ ${#failed[@]} -gt 0 ]; then
  printf '\nfailed: %s\n' "${failed[@]}"
  exit 1
fi
printf '\nevery redis-py passed\n'
