#!/usr/bin/env bash
# The tests of a package on other versions of the library under it: the oldest and the newest that conquiet supports.
#   PYTHON=.venv/bin/python scripts/matrix_libraries.sh [words for pytest]
# RESP2 and RESP3, decoded and raw replies are parameters of the tests themselves. Each line gets a virtual
# environment in .cache/matrix, made from the lock file with the library exchanged; all are run, and the exit code says
# whether all passed.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
words=("$@")
failed=()

# environment NAME REQUIREMENT…: make it unless it is there; prints its interpreter.
environment() {
  local folder=.cache/matrix/$1
  shift
  if [ ! -e "$folder/.ready" ]; then
    rm -rf "$folder"
    "$python" -m venv "$folder" >&2 &&
      "$folder/bin/python" -m pip install --quiet -r requirements-dev.lock >&2 &&
      "$folder/bin/python" -m pip install --quiet --no-deps "$@" >&2 &&
      "$folder/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable . >&2 &&
      touch "$folder/.ready" || return 1
  fi
  echo "$folder/bin/python"
}

# on NAME "FOLDER…" REQUIREMENT…: run the folders' tests with these requirements.
on() {
  local name=$1 folders=$2 interpreter
  shift 2
  printf '\n== %s: %s\n' "$name" "$folders"
  if ! interpreter=$(environment "$name" "$@"); then
    failed+=("$name: no environment")
    return
  fi
  # shellcheck disable=SC2086 # several folders
  "$interpreter" -m pytest -q $folders "${words[@]}" || failed+=("$name")
}

# lowest EXTRA LIBRARY: the lower bound in pyproject.toml.
lowest() { sed -n "s/^$1 = .*$2>=\([0-9.]*\).*/\1/p" pyproject.toml; }

for version in ${REDIS_PY_VERSIONS:-6.4 7.4 8.1}; do
  on "redis-py-$version" "tests/unit/redis_transport tests/unit/queue tests/integration/queue" "redis==$version.*"
done

# The writer leans on a few private attributes of SQLAlchemy, so the lower bound is a promise that has to be run.
sqlalchemy=$(lowest mysql sqlalchemy) pymysql=$(lowest mysql 'pymysql\[rsa\]')
on "sqlalchemy-$sqlalchemy-pymysql-$pymysql" "tests/unit/db tests/integration/db" \
  "sqlalchemy==$sqlalchemy" "pymysql==$pymysql"

# Deliveries are read beside pika, on some of its private methods.
pika=$(lowest rabbit pika) pynacl=$(lowest rabbit pynacl) msgspec=$(lowest dependencies msgspec)
on "pika-$pika-pynacl-$pynacl-msgspec-$msgspec" "tests/unit/rabbit tests/integration/rabbit" \
  "pika==$pika" "pynacl==$pynacl" "msgspec==$msgspec"

# Built from source: where the headers are missing there is nothing to test.
if command -v cc >/dev/null && pkg-config --exists libmariadb 2>/dev/null; then
  CONQUIET_TEST_DB_DRIVERS=mysqldb on mysqlclient tests/integration/db mysqlclient
else
  printf '\n== mysqlclient: left out, it needs a C compiler, pkg-config and libmariadb-dev\n'
fi

if [ ${#failed[@]} -gt 0 ]; then
  printf '\nfailed: %s\n' "${failed[@]}"
  exit 1
fi
printf '\nevery library passed\n'
