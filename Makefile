# Every target makes what it needs: a fresh machine has python3 with venv, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check lint types layers docs bench soak clean
.DEFAULT_GOAL := check

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,demo]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/linn demo

test: $(STAMP)
	$(BIN)/python -m pytest -m 'not soak'

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
	$(BIN)/python -m pytest tests/test_docs.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) build dist *.egg-info
