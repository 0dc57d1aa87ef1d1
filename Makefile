# `make help` lists what there is. ARGS= is passed on: make test ARGS="-k watermark"
VENV_PYTHON := .venv/bin/python
ARGS :=

# Tests start some hundred commands: each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test sim campaign lint check bench soak lock

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv ready (all the others do it by themselves)
	@.ci/setup

# Spark is 400 MB: its packages are installed while the engine runs.
demo: ## run the flights example and print its report
	@.ci/setup engine
	@log=$$(mktemp); .ci/setup >$$log 2>&1 & setup=$$!; \
	    $(VENV_PYTHON) -m examples.flights run || exit; \
	    wait $$setup || { cat $$log; exit 1; }; rm $$log
	@$(VENV_PYTHON) -m examples.flights report

test: setup ## run the tests
	@$(VENV_PYTHON) -m pytest -n auto --maxprocesses=4 --dist loadgroup $(ARGS)

sim: setup ## whole clusters on virtual time, from seeds, for a minute; what fails is made smaller
	@$(VENV_PYTHON) -m tests.sim $(ARGS)

campaign: setup ## real workers and servers, harmed for hours while somebody reads; goes on where it stood
	@$(VENV_PYTHON) -m tests.campaign $(ARGS)

lint: setup ## format, lint rules, types and layers, without changing anything
	@$(VENV_PYTHON) -m ruff format --check
	@$(VENV_PYTHON) -m ruff check
	@$(VENV_PYTHON) -m mypy
	@.venv/bin/lint-imports --no-logo

check: lint ## all of lint, then the tests
	@$(MAKE) test

bench: setup ## measure; the numbers go to bench/out
	@$(VENV_PYTHON) -m bench $(ARGS)

soak: setup ## the long tests, with faults, that `make test` leaves out
	@$(VENV_PYTHON) -m pytest -m soak $(ARGS)

lock: ## write requirements.lock anew with the newest versions allowed
	@.ci/lock
