# Every target makes what it needs: a fresh machine has python3 with venv, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test files run beside one another, in the order of tests/conftest.py; `make test WORKERS=0` runs them one by one.
WORKERS ?= 3
BESIDE = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# The tests start hundreds of processes: whatever the shell says, none of them should compile all of linn again.
export PYTHONDONTWRITEBYTECODE :=

# Bounds on time hold only in runs that set this, which have the machine to themselves: see tests/stopwatch.py.
perf soak: export MEASURE := 1

.PHONY: demo quick test system perf check lint types layers docs site bench soak clean
.DEFAULT_GOAL := check

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): the first time this takes a minute or more"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,demo]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/linn demo

# The tiers of the tests, on two cores. Under a minute: what is pure or in one process and short, and a few simulations.
quick: $(STAMP)
	$(BIN)/python -m pytest -m quick $(BESIDE)

# A quarter of an hour, and no verdict by the clock: `quick`, and broker, clients, storage, simulations, docs.
test: $(STAMP)
	$(BIN)/python -m pytest -m 'quick or test' $(BESIDE)

# Real processes: kill -9, signals, the command line, clients in other languages, the demo, fresh installations.
system: $(STAMP)
	$(BIN)/python -m pytest -m system $(BESIDE)

# Whatever is judged by a clock: rates under attack, fairness, latencies. One by one, on a machine that does nothing else.
perf: $(STAMP)
	$(BIN)/python -m pytest -m 'perf or measured'

# Hours, on fresh seeds.
soak: $(STAMP)
	$(BIN)/python -m pytest -m soak --timeout 0

# What every change must pass, with `system`. The tests of the documentation are among the tests.
check: lint types layers test

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/python -m pytest tests/test_docs.py tests/test_site.py

site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) build dist site *.egg-info
