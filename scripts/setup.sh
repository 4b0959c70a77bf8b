#!/usr/bin/env bash
# Set-up steps of the Makefile. Idempotent; quiet unless something is installed or missing.
#   setup.sh venv DIR     a virtual environment with the pinned dependencies and this package
#   setup.sh servers      redis-server, MariaDB or MySQL, PostgreSQL, rabbitmq-server and Chromium for the tests
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

# as_root COMMAND...: run as root, or fail without asking for a password.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@"; else return 1; fi
}

# apt_install PACKAGE...: true when apt could install them.
apt_install() {
  command -v apt-get >/dev/null || return 1
  say "installing with apt: $*"
  local log
  log=$(mktemp)
  # Packages talk about services that they did not start; that is worth reading only when it fails.
  if as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq >"$log" 2>&1 &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >>"$log" 2>&1; then
    rm -f "$log"
  else
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
}

venv() {
  local dir=$1 python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    say "conquiet needs Python 3.11 or newer as '$python'; name another one with: make PYTHON=/path/to/python3.11 …"
    exit 1
  }
  if ! [ -x "$dir/bin/pip" ]; then
    say "creating $dir"
    # Debian splits venv into a package of its own.
    "$python" -m venv "$dir" 2>/dev/null || {
      rm -rf "$dir"
      apt_install python3-venv && "$python" -m venv "$dir"
    } || {
      say "cannot create a virtual environment; install Python's venv module (Debian: apt-get install python3-venv)"
      exit 1
    }
  fi
  say "installing the pinned dependencies (first time: about half a minute)"
  local log
  log=$(mktemp)
  "$dir/bin/pip" install --disable-pip-version-check --quiet --require-hashes -r requirements-dev.lock >"$log" 2>&1 &&
    "$dir/bin/pip" install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e . >>"$log" 2>&1 || {
    cat "$log" >&2
    rm -f "$log"
    say "pip could not install what requirements-dev.lock pins; the reason is above"
    exit 1
  }
  rm -f "$log"
}

# found NAME...: true when one of the programs is on PATH or in Debian's folders for daemons.
found() {
  local name
  for name in "$@"; do
    if PATH="$PATH:/usr/sbin:/usr/local/sbin:/usr/lib/rabbitmq/bin" command -v "$name" >/dev/null; then return 0; fi
  done
  return 1
}

# no_postgres_cluster: keep Debian's postgresql-common from making a cluster of its own.
no_postgres_cluster() {
  [ -e /etc/postgresql-common/createcluster.conf ] && return 0
  as_root mkdir -p /etc/postgresql-common &&
    echo 'create_main_cluster = false' | as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
}

servers() {
  local missing=()
  [ -n "${CONQUIET_TEST_REDIS_URL:-}" ] || found redis-server valkey-server || missing+=(redis-server)
  [ -n "${CONQUIET_TEST_DB_URL:-}" ] || found mariadbd mysqld || missing+=(mariadb-server)
  [ -n "${CONQUIET_TEST_POSTGRES_URL:-}" ] || found postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ||
    missing+=(postgresql)
  [ -n "${CONQUIET_TEST_RABBIT_URL:-}" ] || found rabbitmq-server || missing+=(rabbitmq-server)
  # The tests of the dashboard drive a real browser.
  found chromium chromium-browser google-chrome || missing+=(chromium)
  # For the rules and dashboards in deploy/. The tests start a private one; a service that the package starts is not used.
  found prometheus || missing+=(prometheus)
  [ ${#missing[@]} -eq 0 ] && return 0
  # Debian's package makes a cluster when it is installed, and starts it at every boot. The tests use neither.
  case " ${missing[*]} " in *" postgresql "*) no_postgres_cluster || true ;; esac
  apt_install "${missing[@]}" || {
    say "The tests need these servers and cannot install them here: ${missing[*]}"
    say "Install them (Debian/Ubuntu: apt-get install ${missing[*]}), or run 'docker compose up -d' and set"
    say "CONQUIET_TEST_REDIS_URL, CONQUIET_TEST_DB_URL, CONQUIET_TEST_POSTGRES_URL and CONQUIET_TEST_RABBIT_URL as"
    say "docker-compose.yml says."
    exit 1
  }
}

"$@"
