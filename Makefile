# The whole toolbox. `make` alone lists it; CI runs exactly `make test`.
# Needs python3.11, make and bash; everything else is installed into .venv, pinned by hash.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# One thing at a time, but for what `test` asks for side by side.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif

# The oldest supported Python is the one we develop on; the others run the tests only.
PYTHON_VERSION := 3.11
OTHER_VERSIONS := 3.12 3.13

# Test processes (three: much of what is tested waits); ARGS goes to pytest: make check ARGS="-k cancel -x"
JOBS ?= 3
ARGS ?=

# The order of tests is shuffled, the same way each time: one tree gets one answer. SEED=2 asks again.
SEED ?= 1

# What happens to be set in the caller's shell must not change what is tested, nor how fast: the
# tests start some thousand processes, and without bytecode each would compile all that it imports.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONDONTWRITEBYTECODE
export PIP_NO_INPUT := 1

BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest
MANY := -n $(JOBS) --randomly-seed=$(SEED)

# Held to 95 % of lines and branches by `make coverage`.
COVERED := */midrun/core/*,*/midrun/codec/*,*/midrun/ports/*,*/midrun/errors.py

.PHONY: help setup quick check test fix hooks lint types imports web programs tests postgres others examples coverage \
        simulate mutants bench demo docs site package screenshots pins clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with the pinned packages (the other targets do it too)

# Ruff looks at files that differ from main; without a branch main, at those that are not committed.
CHANGED = $$(git diff --name-only --diff-filter=d $$(git merge-base HEAD main 2>/dev/null || echo HEAD) -- '*.py'; \
            git ls-files --others --exclude-standard -- '*.py')
quick: $(READY) ## seconds: lint of changed files, tests of core, codec and verify
	@files=$(CHANGED); if [ -n "$$files" ]; then \
	    $(BIN)/ruff check $$files && $(BIN)/ruff format --check $$files; fi
	$(PYTEST) -n 2 -q -p no:randomly -m "not slow" $(addprefix tests/unit/,core codec verify) $(ARGS)

check: lint types imports web ## the fast loop: lint, types, imports, tests that are not slow
	$(PYTEST) $(MANY) -m "not slow" $(ARGS)

# Checks of the sources take one core each, so two of them run at a time; tests take both.
SOURCES := lint types imports web site package
test: $(READY) ## everything CI runs, on every Python found here
	@$(MAKE) --jobs=2 SIDE_BY_SIDE=yes $(SOURCES)
	@$(MAKE) tests postgres examples others
	@echo "make test: PASSED. Python $(PYTHON_VERSION) with every gate; the others as listed above."

fix: $(READY) ## mend and format what a machine can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

hooks: $(READY) ## install the Git hooks: ruff, import contracts, commit subjects
	$(BIN)/pre-commit install

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY) ## mypy, strict
	$(BIN)/mypy

imports: $(READY) ## import contracts: who may see whom
	$(BIN)/lint-imports --no-logo --no-cache

web: $(READY) ## tsc: the types of the page's scripts
	$(BIN)/python tools/node.py tsc --project tools/web

programs: $(READY) ## what tests drive: Chromium, Postgres, pgbouncer, tmux, zsh, fish
	@$(BIN)/python tools/programs.py

# The browser lives in an event loop for as long as its tests do; others start loops of their own.
tests: $(READY) programs ## all tests on Python 3.11, slow ones and gates included
	$(PYTEST) $(MANY) --ignore=tests/browser $(ARGS)
	$(PYTEST) $(MANY) tests/browser

# Only those that keep runs somewhere; what is about the file itself is listed with its reason.
DRIVER := tests/crash $(addprefix tests/unit/,driver runs) $(addprefix tests/scenarios/,promises conversation)
postgres: $(READY) programs ## the driver's tests once more, with their runs in Postgres
	MIDRUN_TEST_STORE=postgres $(PYTEST) $(MANY) -rs $(DRIVER) $(ARGS)

# What an interpreter can change: the library and its processes. Pages, protocols and servers are
# tested once, and so is what is marked `once`; `slow` would take the time of all the rest again.
LIBRARY := tests/journals $(addprefix tests/unit/,agents codec core driver mcp models runs stores verify) \
           $(addprefix tests/scenarios/,promises conversation)
others: $(READY) ## the tests on each other Python that is installed
	$(BIN)/python tools/other_pythons.py $(OTHER_VERSIONS) -- $(LIBRARY) --ignore=tests/unit/stores/postgres \
	    $(MANY) -m "not once and not slow" $(ARGS)

# In page order, so without shuffling. Pages without a block to run would have nothing to
# collect, and pytest calls that a failure; hence the look before.
examples: $(READY) programs ## run what the docs tell their readers to write and to type
	$(PYTEST) -p no:randomly $$(find README.md CONTRIBUTING.md docs -name '*.md' -not -path 'docs/adr/*' \
	    -exec grep -lE '^```(python|sh)$$' {} +)

coverage: $(READY) ## core, codec, ports and errors must be covered to 95 %
	$(BIN)/coverage run -m pytest -m "not once" $(ARGS)
	$(BIN)/coverage report --include='$(COVERED)' --fail-under=95

simulate: $(READY) ## 100,000 random schedules with crashes, zombies and lost replies
	$(BIN)/python -m tests.support.simulate --schedules 100000 --seed $(SEED)

mutants: $(READY) ## plant every known fault and see that it is found
	$(BIN)/python -m tests.support.mutants --seed $(SEED)

bench: $(READY) ## what it costs, against the raw limit
	$(BIN)/python -m bench

# With the packages of .venv where they are installed already, and otherwise with only its own.
demo: $(if $(wildcard $(READY)),$(READY),.venv-demo/.ready) ## an agent at work, to be interrupted; no key, no network
	$(<D)/bin/midrun demo $(ARGS)

docs: $(READY) ## draw docs/concepts/phases.md from the transition table
	$(BIN)/python -m tools.draw_table

site: $(READY) ## build the documentation; a link that leads nowhere is an error
	$(BIN)/zensical build --strict

package: $(READY) ## the wheel, alone with each extra in an empty environment
	$(BIN)/python tools/check_package.py

screenshots: $(READY) programs ## draw docs/images from a real server in a real browser
	$(BIN)/python -m tools.screenshots

# Keeps what is pinned unless it must move; `make pins UPGRADE=--upgrade` takes the newest.
UPGRADE ?=
pins: ## recompile requirements/*.txt from *.in
	@test -x .venv-pins/bin/uv || { \
	    python=$$(tools/find-python $(PYTHON_VERSION)) \
	        || { echo "*** no Python $(PYTHON_VERSION) that runs was found" >&2; exit 1; }; \
	    "$$python" -m venv --clear .venv-pins; \
	    .venv-pins/bin/pip install -qq --require-hashes -r requirements/uv.txt; }
	.venv-pins/bin/uv pip compile --quiet --no-config --universal \
	    --python-version $(PYTHON_VERSION) --generate-hashes --no-header --no-emit-index-url \
	    --no-emit-find-links $(UPGRADE) requirements/dev.in --output-file requirements/dev.txt
	.venv-pins/bin/uv pip compile --quiet --no-config --universal \
	    --python-version $(PYTHON_VERSION) --generate-hashes --no-header --no-emit-index-url \
	    --no-emit-find-links --constraint requirements/dev.txt \
	    requirements/demo.in --output-file requirements/demo.txt
	.venv-pins/bin/uv pip compile --quiet --no-config --universal \
	    --python-version $(PYTHON_VERSION) --generate-hashes --no-header --no-emit-index-url \
	    --no-emit-find-links requirements/uv.in --output-file requirements/uv.txt

clean: ## remove environments and caches
	rm -rf .venv .venv-* site tools/web/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage

# Reinstalled only when the pins or the package's own metadata changed.
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
