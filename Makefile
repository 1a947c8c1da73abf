# Two commands on a fresh machine: `make demo` and `make test`. Everything is set up in .venv by itself.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test check test-slow fuzz bench docs fix clean

# Train on the built-in digits at epsilon 3 and write a report. Digits are public, so each demo opens a new ledger.
demo: .venv/ready
	rm -rf .demo
	DPVISION_HOME="$(CURDIR)/.demo/home" $(BIN)/dpvision train digits --epsilon 3 --out .demo/run
	@echo "Look at .demo/run/report.html"

# All tests but the full-size ones, and the static checks; about 17 minutes on 2 cores.
test: .venv/ready check
	$(BIN)/pytest -n 2 -m "not slow"

# The full-size figures: thousands of accountant settings, kills of every long verb, all permutations of places.
test-slow: .venv/ready
	$(BIN)/pytest -n 2 -m slow

# Hostile files and command lines, new ones each time; a fifth of an hour on an idle core.
fuzz: .venv/ready
	DPVISION_FUZZ=$${DPVISION_FUZZ:-10000} $(BIN)/pytest tests/system/fuzz

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: .venv/ready
	for b in accountant adaptive audit board noise engine views first_learner train mix dry_run hierarchical mixing overlap precision priors public reading release release_measures scaling soak start; do $(BIN)/python -m benchmarks.$$b --quick --json || exit 1; done

# The documentation as a site that needs no network: .site/index.html. A broken link or anchor is an error.
docs: .venv/ready
	$(BIN)/mkdocs build --strict

fix: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch comes first and pinned: anything that asks for "torch" without a pin downloads gigabytes.
.venv/ready: pyproject.toml constraints.txt
	@echo "Installing torch and other packages into .venv (2 GB on disk): this takes several minutes, with no further output."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	touch .venv/ready

clean:
	rm -rf .venv .demo .site .mypy_cache .ruff_cache
