#!/usr/bin/env bash
# The integration tests of the packages on servers that Debian stable does not have.
#   PYTHON=.venv/bin/python scripts/matrix.sh [words for pytest]
# Each line of the matrix is one run; all are run, and the exit code says whether all passed.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
servers=${CONQUIET_SERVERS_DIR:-$PWD/.servers}
failed=()

# on NAME FOLDER [VARIABLE=value…]: run the folder's tests with these variables set.
on() {
  local name=$1 folder=$2
  shift 2
  [ -d "$folder" ] || return 0
  printf '\n== %s: %s\n' "$name" "$folder"
  env "$@" "$python" -m pytest -q "$folder" "${words[@]}" || failed+=("$name: $folder")
}

words=("$@")
"$python" scripts/fetch_servers.py --into "$servers" mysql redis valkey || exit 1
export CONQUIET_SERVERS_DIR=$servers
# Redis 8.2 and newer trim by XTRIM … ACKED; Debian has 8.0. Exit code 3: there is none for this machine.
"$python" scripts/fetch_newest_redis.py --into "$servers"
has_newest=$?
[ $has_newest -eq 0 ] || [ $has_newest -eq 3 ] || exit 1
# RabbitMQ 4 needs a newer Erlang, so a system of its own, which is entered by chroot: root's right.
has_rabbit=$([ "$(id -u)" -eq 0 ] && unshare -m true 2>/dev/null && echo yes)
if [ -n "$has_rabbit" ]; then
  "$python" scripts/fetch_servers.py --into "$servers" rabbitmq || exit 1
fi

on "MySQL 9" tests/integration/db CONQUIET_TEST_DB_FLAVOURS=mysql
for package in redis_transport queue runtime processor scheduler; do
  on "Redis 8" "tests/integration/$package" CONQUIET_REDIS_SERVER="$servers/redis/bin/redis-server"
  on "Valkey 9" "tests/integration/$package" CONQUIET_REDIS_SERVER="$servers/valkey/bin/valkey-server"
done
for package in queue processor management; do
  [ $has_newest -eq 3 ] || on "newest Redis" "tests/integration/$package" \
    CONQUIET_REDIS_SERVER="$servers/redis-newest/bin/redis-server"
done
# The cluster's tests; the variable also makes Sentinel fail over 20 times.
on "Redis 8 cluster" tests/integration/cluster CONQUIET_TORTURE=1 CONQUIET_REDIS_SERVER="$servers/redis/bin/redis-server"
on "Valkey 9 cluster" tests/integration/cluster CONQUIET_TORTURE=1 CONQUIET_REDIS_SERVER="$servers/valkey/bin/valkey-server"
if [ -n "$has_rabbit" ]; then
  on "RabbitMQ 4" tests/integration/rabbit CONQUIET_RABBITMQ_SERVER="$servers/rabbitmq/bin/rabbitmq-server"
else
  printf '\n== RabbitMQ 4 is left out: its system is entered by chroot, which needs root\n'
fi
on "MySQL 9, Redis 8" tests/integration/transactional CONQUIET_TEST_DB_FLAVOURS=mysql \
  CONQUIET_REDIS_SERVER="$servers/redis/bin/redis-server"

PYTHON=$python scripts/matrix_libraries.sh "${words[@]}" || failed+=("the libraries")
PYTHON=$python scripts/matrix_pythons.sh "${words[@]}" || failed+=("the versions of Python")

if [ ${#failed[@]} -gt 0 ]; then
  printf '\nfailed: %s\n' "${failed[@]}"
  exit 1
fi
printf '\nthe whole matrix passed\n'
