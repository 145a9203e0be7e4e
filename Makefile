# `make` lists the targets; CI runs exactly `make test`.
# Needs python3.11, make and bash. Everything else is installed into .venv, pinned by hash.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# Targets run one after the other, except those that `test` starts in parallel.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif

# Development uses the oldest supported Python; `make test` repeats the tests of the library on the
# newest. The workflow before a merge tests those in between, too: OTHER_VERSIONS="3.12 3.13".
PYTHON_VERSION := 3.11
OTHER_VERSIONS ?= 3.13

# Test processes: three, because many tests wait. ARGS goes to pytest: make check ARGS="-k cancel -x"
JOBS ?= 3
ARGS ?=

# Tests run in a shuffled order that depends only on SEED, so a result can be reproduced.
SEED ?= 1

# Variables of the caller's shell must not change the tests or slow them down. The tests start
# many processes; without bytecode files, each would compile all of its imports.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONDONTWRITEBYTECODE
export PIP_NO_INPUT := 1

BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest
MANY := -n $(JOBS) --randomly-seed=$(SEED)
LONGEST_JOBS ?= $(JOBS)

# `make coverage` requires 95 % of their lines and branches.
COVERED := */midrun/core/*,*/midrun/codec/*,*/midrun/ports/*,*/midrun/errors.py

.PHONY: help setup quick check test fix hooks lint types imports web units bytecode programs tests browser postgres others portable \
        examples coverage nightly simulate chaos mutants bench demo docs site package image compose screenshots pins clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with the pinned packages (other targets do it, too)

# Ruff checks the files that differ from main; without a branch main, those that are not committed.
CHANGED = $$(git diff --name-only --diff-filter=d $$(git merge-base HEAD main 2>/dev/null || echo HEAD) -- '*.py'; \
            git ls-files --others --exclude-standard -- '*.py')
quick: $(READY) ## takes seconds: lint changed files, test core, codec and verify
	@files=$(CHANGED); if [ -n "$$files" ]; then \
	    $(BIN)/ruff check $$files && $(BIN)/ruff format --check $$files; fi
	$(PYTEST) -n 2 -q -p no:randomly -m "not slow" $(addprefix tests/unit/,core codec verify) $(ARGS)

# Without the scenarios, crashes and pages: those take most of the time of `make test`.
FAST := $(addprefix tests/,unit journals docs test_tidy.py test_tidy_errors.py)
check: lint ## under two minutes: lint, types, imports, unit tests that are not slow
	@$(MAKE) --jobs=2 --output-sync=target SIDE_BY_SIDE=yes types units imports web

units: $(READY) ## the unit tests that are not slow; part of `make check`
	$(PYTEST) $(MANY) -m "not slow" $(FAST) $(ARGS)

# Each check of the sources uses one core, so two run in parallel. Of the tests, three targets run
# in parallel, because pages, databases and child processes wait often. Each has two processes,
# because each process imports all tests of its target; `tests`, which takes longest, has four,
# so that both cores are busy when it runs alone at the end. The longest come first. The log of
# a target is printed when it ends.
SOURCES := types bytecode package web site lint imports
TESTS := tests browser postgres others examples
test: $(READY) ## everything that CI runs, on the oldest and the newest supported Python
	@$(MAKE) --jobs=2 SIDE_BY_SIDE=yes $(SOURCES)
	@$(MAKE) --jobs=3 --output-sync=target SIDE_BY_SIDE=yes JOBS=2 LONGEST_JOBS=4 $(TESTS)
	@echo "make test: PASSED. Python $(PYTHON_VERSION): all checks. Other versions: as listed above."

fix: $(READY) ## apply automatic fixes and format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

hooks: $(READY) ## install the Git hooks: ruff, import contracts, commit subjects
	$(BIN)/pre-commit install

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY) ## mypy, strict
	$(BIN)/mypy

imports: $(READY) ## check the import contracts between packages
	$(BIN)/lint-imports --no-logo --no-cache

web: $(READY) ## tsc: check the types of the page's scripts
	$(BIN)/python tools/node.py tsc --project tools/web

# Collecting the tests imports all of their modules, so Python stores the bytecode of each. Without
# this, the test processes of one run would all compile the same modules at the same time.
COLLECT := --collect-only -qqq
HIDE_COUNTS := sed '/: [0-9]*$$/d; /^$$/d'
bytecode: $(READY) ## create the environments of the other Pythons; compile the imports of all tests
	@$(PYTEST) $(COLLECT) | $(HIDE_COUNTS)
	@$(BIN)/python tools/other_pythons.py $(OTHER_VERSIONS) -- $(COLLECT) $(LIBRARY) | $(HIDE_COUNTS)

programs: $(READY) ## find or install programs for the tests: Chromium, pgbouncer, tmux, zsh, fish
	@$(BIN)/python tools/programs.py

tests: $(READY) programs ## the tests on Python 3.11, with the slow ones, without the page
	$(PYTEST) $(MANY) -n $(LONGEST_JOBS) -m "not nightly" --ignore=tests/browser $(ARGS)

# The browser tests share one event loop; other tests start their own, so they run apart.
browser: $(READY) programs ## the tests of the page, in Chromium
	$(PYTEST) $(MANY) tests/browser $(ARGS)

# Only tests that store runs. Tests of the SQLite file itself are skipped, each with its reason.
# Of the hosted agents, those that are functions: the store does not see which framework it is.
DRIVER := tests/crash $(addprefix tests/unit/,driver runs hosts/test_function.py) \
          $(addprefix tests/scenarios/,promises conversation)
postgres: $(READY) programs ## repeat the tests of the driver with runs in Postgres
	MIDRUN_TEST_STORE=postgres $(PYTEST) $(MANY) -m "not nightly" -rs $(DRIVER) $(ARGS)

# Searches of which `make test` has a sample, and every hosted framework with runs in Postgres.
nightly: $(READY) programs ## the tests that `make test` leaves out
	$(PYTEST) $(MANY) -m nightly --ignore=tests/browser $(ARGS)
	MIDRUN_TEST_STORE=postgres $(PYTEST) $(MANY) -rs tests/unit/hosts $(ARGS)

# The Python version matters to the library and its processes. Pages, protocols and servers are
# tested on one version, as are tests marked `once`; tests marked `slow` would double the time.
LIBRARY := tests/journals $(addprefix tests/unit/,agents codec core driver mcp models runs stores verify) \
           $(addprefix tests/scenarios/,promises conversation) --ignore=tests/unit/stores/postgres \
           -m "not once and not slow"
others: $(READY) ## run the tests on each other supported Python that is installed
	$(BIN)/python tools/other_pythons.py $(OTHER_VERSIONS) -- $(LIBRARY) $(MANY) $(ARGS)

# Tests that read /proc, or need a Postgres server, are left out: they run on Linux only.
PORTABLE := tests/journals $(addprefix tests/unit/,agents codec core models runs verify) \
            tests/scenarios/promises -m "not once and not slow"
portable: $(READY) ## the tests that run on macOS, too
	$(PYTEST) $(MANY) $(PORTABLE) $(ARGS)

# Blocks run in page order, so without shuffling. A page without such a block is left out, because
# pytest fails if it collects nothing.
examples: $(READY) programs ## run the Python and shell blocks of the documentation
	$(PYTEST) -p no:randomly $$(find README.md CONTRIBUTING.md docs -name '*.md' -not -path 'docs/adr/*' \
	    -exec grep -lE '^```(python|sh)$$' {} +)

coverage: $(READY) ## check that tests cover 95 % of core, codec, ports and errors
	$(BIN)/coverage run -m pytest -m "not once and not nightly" $(ARGS)
	$(BIN)/coverage report --include='$(COVERED)' --fail-under=95

simulate: $(READY) ## run 100,000 random schedules with crashes, zombies and lost replies
	$(BIN)/python -m tests.support.simulate --schedules 100000 --seed $(SEED)

# CHAOS goes to the program: make chaos CHAOS="--seed 17 --seconds 60"
CHAOS ?= --seed $(SEED) --count 20
chaos: $(READY) programs ## play plans of kills, freezes, full disks, clock jumps, upgrades, deletions
	$(BIN)/python -m tests.scenarios.fleet.chaos $(CHAOS)

mutants: $(READY) ## plant every known fault and check that the tests find it
	$(BIN)/python -m tests.support.mutants

bench: $(READY) ## measure the cost of midrun, compared with raw limits
	$(BIN)/python -m bench

# Uses .venv if it exists; otherwise a smaller environment with only the packages of the demo.
# A demo that was left ends with 75, because its run can continue: that is no error.
demo: $(if $(wildcard $(READY)),$(READY),.venv-demo/.ready) ## run the demo: an agent to interrupt; needs no API key
	$(<D)/bin/midrun demo $(ARGS) || test $$? = 75

docs: $(READY) ## generate docs/concepts/phases.md, the pictures and the page's types
	$(BIN)/python -m tools.draw_table
	$(BIN)/python -m tools.draw_journals
	$(BIN)/python -m tools.page_declarations

site: $(READY) ## build the documentation; a broken link is an error
	$(BIN)/zensical build --strict

# The wheel is the same for every Python: PACKAGE_PYTHON=3.13 chooses that of the environments.
PACKAGE_PYTHON ?=
package: $(READY) ## check the wheel with each extra in an empty environment
	$(BIN)/python -m tools.check_package $(if $(PACKAGE_PYTHON),--python $$(tools/find-python $(PACKAGE_PYTHON)))

image: ## build the container image and run it; needs a container runtime
	docker build --file deploy/Dockerfile --tag midrun .
	docker run --rm --read-only midrun config check worker

# In a clone without deploy/secrets and deploy/.env. The first line prints the block of the guide.
compose: ## run the lines of docs/guides/deploy.md for compose; needs a container runtime
	cd deploy && sed -n '/^mkdir -m 700 secrets/,/^```/{/^```/!p}' ../docs/guides/deploy.md | bash -eux
	cd deploy && docker compose up --detach --wait
	curl --fail --silent --show-error http://localhost:8700/readyz
	cd deploy && docker compose --profile monitoring config --quiet

screenshots: $(READY) programs ## make docs/images from a real server in a real browser, with the recording
	$(BIN)/python -m tools.screenshots
	$(BIN)/python -m tools.recording

# Keeps the pinned versions where possible; `make pins UPGRADE=--upgrade` takes the newest.
UPGRADE ?=
pins: ## recompile requirements/*.txt from *.in
	@test -x .venv-pins/bin/uv || { \
	    python=$$(tools/find-python $(PYTHON_VERSION)) \
	        || { echo "*** no working Python $(PYTHON_VERSION) was found" >&2; exit 1; }; \
	    "$$python" -m venv --clear .venv-pins; \
	    .venv-pins/bin/pip install -qq --require-hashes -r requirements/uv.txt; }
	.venv-pins/bin/uv pip compile --quiet --no-config --universal \
	    --python-version $(PYTHON_VERSION) --generate-hashes --no-header --no-emit-index-url \
	    --no-emit-find-links --override requirements/overrides.in $(UPGRADE) \
	    requirements/dev.in --output-file requirements/dev.txt
	.venv-pins/bin/uv pip compile --quiet --no-config --universal \
	    --python-version $(PYTHON_VERSION) --generate-hashes --no-header --no-emit-index-url \
	    --no-emit-find-links --constraint requirements/dev.txt \
	    requirements/demo.in --output-file requirements/demo.txt
	.venv-pins/bin/uv pip compile --quiet --no-config --universal \
	    --python-version $(PYTHON_VERSION) --generate-hashes --no-header --no-emit-index-url \
	    --no-emit-find-links requirements/uv.in --output-file requirements/uv.txt

clean: ## remove environments and caches
	rm -rf .venv .venv-* site tools/web/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage

# Packages are installed again only if the pins or the metadata of midrun changed.
INSTALLED_FROM := requirements/dev.txt pyproject.toml tools/make-venv

$(READY): $(INSTALLED_FROM)
	@tools/make-venv $(PYTHON_VERSION) .venv
	@touch $@

.venv-demo/.ready: requirements/demo.txt pyproject.toml tools/make-venv
	@tools/make-venv $(PYTHON_VERSION) .venv-demo requirements/demo.txt
	@touch $@

.venv-%/.ready: $(INSTALLED_FROM)
	@tools/make-venv $* .venv-$*
	@touch $@
