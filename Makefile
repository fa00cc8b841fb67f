# Every target makes what it needs: a fresh machine has python3 with venv, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test files run beside one another, in the order of tests/conftest.py; `make test WORKERS=0` runs them one by one.
WORKERS ?= 3

# The tests start hundreds of processes: whatever the shell says, none of them should compile all of linn again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check lint types layers docs site bench soak clean
.DEFAULT_GOAL := check

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): the first time this takes a minute or more"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,demo]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/linn demo

test: $(STAMP)
	$(BIN)/python -m pytest -m 'not soak' --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

soak: $(STAMP)
	$(BIN)/python -m pytest -m soak --timeout 0

check: lint types layers docs test

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
