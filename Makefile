# conquiet: every target does its own set-up. `make` alone prints this help.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SERVERS := $(CURDIR)/.servers
REPORT := .cache/spec-report.json
# Fetched servers (make matrix) are found through this; absent is fine.
export CONQUIET_SERVERS_DIR ?= $(SERVERS)
# Tests start hundreds of Python processes; each would compile the package again (0.3 s), and each process of
# pytest all the tests (14 s).
unexport PYTHONDONTWRITEBYTECODE
# Tests wait more than they compute: more processes than cores pay. Each starts servers of its own.
WORKERS ?= 4
# Extra words for pytest, e.g. make test-fast ARGS="-k backoff -x"
ARGS ?=

.DEFAULT_GOAL := help

.PHONY: help
help: ## Print this help
	@echo "conquiet: process it, commit it, then acknowledge it"
	@echo
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml requirements-dev.lock scripts/setup.sh src/conquiet/_version.py
	@PYTHON="$(PYTHON)" scripts/setup.sh venv "$(VENV)"
	@touch $@

.PHONY: servers
servers:
	@scripts/setup.sh servers

.PHONY: demo
demo: $(READY) ## Run the main job end to end (no root, no server needed; REDIS_URL= and DB_URL= use yours)
	@$(BIN)/conquiet demo $(if $(REDIS_URL),--redis-url "$(REDIS_URL)") $(if $(DB_URL),--db-url "$(DB_URL)") $(ARGS)

.PHONY: lint
lint: style ## Check style, types and the borders between packages
	@$(TYPES)

.PHONY: style
style: $(READY)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "run: make format"; exit 1; }

TYPES := $(BIN)/mypy --no-error-summary src tests scripts $(wildcard benchmarks examples) && $(BIN)/lint-imports --no-logo

.PHONY: format
format: $(READY) ## Format the code and fix what ruff can fix
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .

.PHONY: test
test: style servers ## Everything CI runs: lint, types, borders, all tests, coverage, conformance
	@rm -f .coverage .coverage.* $(REPORT)
	@mkdir -p .cache
	@# mypy uses one core for a minute: beside the tests that costs half of it. A failure of either fails the target.
	@# In a fresh clone each worker would compile all tests, 17 s of processor time; one process does so before they start.
	@{ $(TYPES); } >.cache/types.log 2>&1 & types=$$!; \
	[ -d tests/__pycache__ ] || $(BIN)/pytest -q --collect-only >/dev/null 2>&1; \
	$(BIN)/coverage run -m pytest -q -n $(WORKERS) --dist loadgroup --spec-report=$(REPORT) $(ARGS); status=$$?; \
	wait $$types || { cat .cache/types.log; exit 1; }; exit $$status
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report
	@$(BIN)/python scripts/conformance.py --report $(REPORT) --check

.PHONY: test-fast
test-fast: $(READY) ## Unit tests only: no server, seconds
	@$(BIN)/pytest -q -n 2 tests/unit $(ARGS)

.PHONY: conformance
conformance: $(READY) servers ## Run the tests that prove rules; print proved / rules; write docs/conformance.md
	@$(BIN)/pytest -q -m spec -n $(WORKERS) --dist loadgroup --spec-report=$(REPORT) $(ARGS)
	@$(BIN)/python scripts/conformance.py --report $(REPORT)

.PHONY: matrix
matrix: $(READY) servers ## The integration tests on MySQL 9, Redis 8, Valkey 9, RabbitMQ 4, Python 3.13, 3.14 (fetched), other libraries
	@PYTHON="$(BIN)/python" scripts/matrix.sh -n $(WORKERS) --dist loadgroup $(ARGS)

.PHONY: torture
torture: $(READY) servers ## All storms at full size; appends to ledger/ and renders docs/reliability.md (ARGS="--hours 8")
	@$(BIN)/python scripts/torture.py $(ARGS)

.PHONY: ledger-check
ledger-check: $(READY) ## Judge the kept histories again, and check that docs/reliability.md is what the ledger says
	@$(BIN)/python scripts/ledger.py --judge
	@$(BIN)/python scripts/ledger.py --check

.PHONY: bench
bench: $(READY) servers ## Measure every package beside the raw client and its peers; prints ratios
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file $(ARGS) || exit 1; done

# Peers are for comparison only: not locked, and never needed by anything else.
PEERS := faststream[redis,rabbit] taskiq taskiq-redis taskiq-aio-pika dramatiq[redis,rabbitmq] celery[redis] streaq saq[redis] \
	pydocket aio-pika apscheduler<4 croniter uvloop procrastinate dbos absurd-sdk chasquimq
.PHONY: bench-peers
bench-peers: ## Install the libraries that benchmarks compare with (newest releases, into .cache)
	@$(PYTHON) -m venv .cache/bench-venv && $(PYTHON) -m venv .cache/bench-arq
	@.cache/bench-venv/bin/pip install --disable-pip-version-check --quiet -e '.[all]' $(foreach peer,$(PEERS),'$(peer)')
	@.cache/bench-arq/bin/pip install --disable-pip-version-check --quiet arq hiredis msgspec prometheus-client
	@command -v npm >/dev/null || { echo "no npm: the Node peers are left out"; exit 0; }; \
		mkdir -p .cache/bench-node && cd .cache/bench-node && npm init -y >/dev/null && npm install --silent @proca/queue rabbitmq-client

.PHONY: screenshots
screenshots: $(READY) servers ## Write docs/img/dashboard-*.png
	@$(BIN)/python scripts/dashboard_screenshots.py

.PHONY: api
api: $(READY) ## Write the reference pages of the documentation and its drawings from the code
	@$(BIN)/python scripts/api_docs.py
	@$(BIN)/python scripts/metrics_docs.py
	@$(BIN)/python scripts/reference_docs.py
	@$(BIN)/python scripts/draw_diagrams.py

DOCS := .cache/docs-venv
$(DOCS)/.ready: requirements-docs.lock
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/pip install --disable-pip-version-check --quiet --require-hashes -r requirements-docs.lock
	@touch $@

.PHONY: docs
docs: $(DOCS)/.ready ## Build the documentation into build/docs; a broken link or anchor is an error
	@$(PYTHON) scripts/build_docs.py --into .cache/docs-source
	@NO_COLOR=1 $(DOCS)/bin/zensical build --strict >.cache/docs.log 2>&1 || { cat .cache/docs.log; exit 1; }
	@echo "build/docs/index.html"

.PHONY: docs-screenshots
docs-screenshots: docs $(READY) ## Look at eight pages of the documentation in Chromium, at two widths; writes docs/img/site
	@$(BIN)/python scripts/docs_screenshots.py

RELEASE := .cache/release-venv
$(RELEASE)/.ready: requirements-release.lock
	@$(PYTHON) -m venv $(RELEASE)
	@$(RELEASE)/bin/pip install --disable-pip-version-check --quiet --require-hashes -r requirements-release.lock
	@touch $@

.PHONY: release
release: $(RELEASE)/.ready ## Build wheel, sdist and SBOM of HEAD twice, compare, and check the metadata
	@$(RELEASE)/bin/python scripts/release.py

.PHONY: api-check
api-check: $(READY) ## Compare the public interface with the last release
	@$(BIN)/python scripts/check_api.py

LOCK := uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --no-annotate --upgrade
.PHONY: lock
lock: ## Refresh the lock files (needs uv; they name no registry)
	@$(LOCK) pyproject.toml --all-extras --group dev -o requirements-dev.lock
	@$(LOCK) pyproject.toml --all-extras -o requirements.lock
	@$(LOCK) --group docs -o requirements-docs.lock
	@$(LOCK) --group release -o requirements-release.lock

.PHONY: clean
clean: ## Remove what make made, except fetched servers
	@rm -rf $(VENV) .cache .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache \
		.hypothesis build dist htmlcov
	@find . -name __pycache__ -type d -not -path './.servers/*' -prune -exec rm -rf {} +
