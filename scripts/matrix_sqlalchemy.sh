#!/usr/bin/env bash
# The database room's tests on the oldest SQLAlchemy and PyMySQL that conquiet supports, exactly as pyproject.toml names them.
#   PYTHON=.venv/bin/python scripts/matrix_sqlalchemy.sh [words for pytest]
# The writer leans on a few private attributes of SQLAlchemy, so the lower bound is a promise that has to be run.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
sqlalchemy=$(sed -n 's/^mysql = .*sqlalchemy>=\([0-9.]*\).*/\1/p' pyproject.toml)
pymysql=$(sed -n 's/^mysql = .*pymysql\[rsa\]>=\([0-9.]*\).*/\1/p' pyproject.toml)
folder=.cache/matrix/sqlalchemy-$sqlalchemy-pymysql-$pymysql

if [ ! -e "$folder/.ready" ]; then
  rm -rf "$folder"
  "$python" -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet -r requirements-dev.lock
  "$folder/bin/python" -m pip install --quiet --no-deps "sqlalchemy==$sqlalchemy" "pymysql==$pymysql"
  "$folder/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .
  touch "$folder/.ready"
fi
printf '\n== SQLAlchemy %s, PyMySQL %s: tests/unit/db tests/integration/db\n' "$sqlalchemy" "$pymysql"
"$folder/bin/python" -c 'import pymysql, sqlalchemy; print(sqlalchemy.__version__, pymysql.VERSION)'
exec "$folder/bin/python" -m pytest -q tests/unit/db tests/integration/db "$@"
