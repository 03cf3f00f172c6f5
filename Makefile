PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FUZZING := $(VENV)/.fuzzing
RELEASING := $(VENV)/.releasing

.PHONY: run image test tools soak test-pgbouncer check audit fuzz torture cluster safeguards docs screenshots load bench bench-quick pythons changes release clean

run: $(READY) ## start everything: Postgres, Redis, serve and worker
	@$(BIN)/gateway up

test: $(READY) ## the whole suite on real engines
	@$(BIN)/pytest --numprocesses auto --dist loadfile

tools: ## install the programs that the suite runs beside the gateway: a browser, proxies, PgBouncer, ...
	@$(PYTHON) -m tests.tools

soak: $(READY) ## every integration and e2e file 30 times, a third of them beside a CPU hog; resumes (RUNS=, JOBS=, FILES=)
	@$(BIN)/python -m tests.soak $(if $(RUNS),--runs $(RUNS)) $(if $(JOBS),--jobs $(JOBS)) $(FILES)

check: $(READY) ## format, lint, types, the direction of imports, the words of docstrings, and known vulnerabilities
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.prose
	@$(BIN)/python -m tests.audit

audit: $(READY) ## known vulnerabilities of the pinned packages, or why that could not be asked
	@$(BIN)/python -m tests.audit

fuzz: $(FUZZING) ## every parser that a stranger can reach, about 20 minutes (SECONDS= for each)
	@$(BIN)/python -m tests.fuzz $(if $(SECONDS),--seconds $(SECONDS))

torture: $(READY) ## kill, stop, cut and starve everything under load, and audit what is left, about 5 minutes
	@$(BIN)/python -m tests.torture $(if $(SEED),--seed $(SEED))

cluster: $(READY) ## several machines: cut networks and lose primaries under load, upgrade replicas, about 12 minutes
	@$(BIN)/python -m tests.cluster $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.cluster --replication asynchronous $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.cluster --pgbouncer --faults kill-primary,cut-primary $(if $(SEED),--seed $(SEED))
	@$(BIN)/pytest -q tests/cluster/rolling_upgrade.py

POOLED := run own_transaction once order publish upsert jobs limits prune discard bulk retention claims reconcile forward queue rejected
test-pgbouncer: $(READY) ## runs, orders and faults once more, through a real PgBouncer (PGBOUNCER= for another one), about 8 minutes
	@POOLER=1 $(BIN)/pytest $(POOLED:%=tests/integration/test_%.py) tests/e2e/test_failpoints.py tests/e2e/test_processes.py tests/integration/test_pgbouncer.py

safeguards: $(READY) ## remove each safeguard in turn and expect its test to fail (SINCE=commit: not those that were red since)
	@$(BIN)/python -m tests.run_safeguards $(if $(SINCE),--since $(SINCE))

docs: $(READY) ## write the tables of docs/routes.md (from the schema of the file) and docs/reliability.md (the safeguards), and gateway/ledger/schema.sql
	@$(BIN)/python -m tests.reference
	@$(BIN)/python -m tests.safeguards
	@$(BIN)/python -m tests.schema

screenshots: $(READY) ## take the pictures of docs/console.md, with a real browser
	@$(BIN)/python -m tests.screenshots

load: $(READY) ## three times the sustainable rate for a minute: what is refused, what is kept
	@$(BIN)/python -m tests.load

bench: $(READY) ## measure everything side by side, about 50 minutes
	@$(BIN)/python -m bench

bench-quick: $(READY) ## the same without the growth stages, in three minutes
	@$(BIN)/python -m bench --quick

pythons: $(READY) ## the wheel in an empty environment of each Python that is claimed (SUITE="tests/unit" runs tests in each, too)
	@$(BIN)/python -m tests.release.pythons $(if $(SUITE),--suite $(SUITE))

changes: $(READY) ## CHANGELOG.md: what is unreleased becomes the section of this version
	@$(BIN)/python -m tests.release.changes

release: $(RELEASING) ## build, check, try and describe what would be released; uploads nothing
	@$(BIN)/python -m tests.release

image: $(READY) ## carry out deploy/Dockerfile without Docker, and send an event through the image, about 6 minutes
	@$(BIN)/python -m tests.deploy

clean: ## remove the environment, the embedded engines' data and the caches
	rm -rf $(VENV) .gateway .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build

$(READY): pyproject.toml deploy/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "setting up $(VENV) (once, about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint deploy/constraints.txt --editable '.[embedded]' --group dev
	@touch $@

$(FUZZING): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint deploy/constraints.txt --group fuzz
	@touch $@

$(RELEASING): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint deploy/constraints.txt --group release
	@touch $@
