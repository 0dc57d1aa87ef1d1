# `make help` lists the targets. ARGS= is passed on: make test ARGS="-k watermark"
VENV_PYTHON := .venv/bin/python
ARGS :=

# The tests start some hundred commands; without bytecode each would compile its imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo kill9 docs pages-check test quick sim campaign lint check bench soak release-check lock versions

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv ready (all other targets do it by themselves)
	@.ci/setup

# Spark is 400 MB: its packages are installed while the engine runs.
demo: ## run the flights example and print its report
	@.ci/setup engine
	@log=$$(mktemp); .ci/setup >$$log 2>&1 & setup=$$!; \
	    $(VENV_PYTHON) -m examples.flights run || exit; \
	    wait $$setup || { cat $$log; exit 1; }; rm $$log
	@$(VENV_PYTHON) -m examples.flights report

test: setup ## run the tests
	@$(VENV_PYTHON) -m pytest -n auto --maxprocesses=4 --dist loadgroup --max-worker-restart=0 $(ARGS)

quick: setup ## run the unit tests: no server, no Spark, no process
	@$(VENV_PYTHON) -m pytest -n logical --maxprocesses=4 -m "not soak and not process" tests/unit $(ARGS)

sim: setup ## whole clusters on virtual time, from seeds, for a minute; shrinks failures
	@$(VENV_PYTHON) -m tests.sim $(ARGS)

campaign: setup ## real workers and servers under faults for hours; resumes where it stopped
	@$(VENV_PYTHON) -m tests.campaign $(ARGS)

lint: setup ## format, lint rules, types and layers; changes nothing
	@$(VENV_PYTHON) -m ruff format --check
	@$(VENV_PYTHON) -m ruff check
	@$(VENV_PYTHON) -m mypy
	@.venv/bin/lint-imports --no-logo

kill9: ## kill a pipeline ten times at random, and compare its result with arithmetic
	@.ci/setup engine
	@$(VENV_PYTHON) -m examples.kill9 $(ARGS)

docs: setup ## build the docs site in build/docs; warnings are errors
	@rm -rf build/docs  # it would keep pages that were moved or removed
	@$(VENV_PYTHON) -m sphinx -q -W --keep-going -j auto -b html -d build/doctrees docs build/docs $(ARGS)
	@echo build/docs/index.html

pages-check: setup ## build the docs site, run its longest pages, look at `millwheel ui` in a browser
	@$(VENV_PYTHON) -m pytest -n auto --maxprocesses=4 --max-worker-restart=0 --dist loadfile -m "pages and not soak" tests/docs tests/ui tests/examples $(ARGS)

check: lint ## lint, then the tests
	@$(MAKE) test

bench: setup ## measure; the numbers go to bench/out
	@$(VENV_PYTHON) -m bench $(ARGS)

soak: setup ## the long tests that `make test` leaves out, and properties with all examples
	@MILLWHEEL_ALL_EXAMPLES=1 $(VENV_PYTHON) -m pytest -m "soak or hypothesis" -o faulthandler_timeout=0 $(ARGS)

versions: setup ## some tests on each version of Python and of Postgres that there is
	@$(VENV_PYTHON) -m tests.versions $(ARGS)

release-check: setup ## build what a release uploads, check it, write it to dist; uploads nothing
	@$(VENV_PYTHON) -m tests.release $(ARGS)

lock: ## write requirements.lock with the newest versions allowed
	@.ci/lock
