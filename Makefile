# make demo    train the quickstart to its end on this machine and print the result
# make test    run every test
# make check   lint, format, types, import rules
# make chaos   a quickstart under a seeded schedule of kills and stops, about 10 minutes
# make setup   only make the environment (.venv)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt

.PHONY: setup demo test check docs chaos

setup: $(VENV)/installed

# torch first: whatever comes later must not choose another build of it.
$(VENV)/installed: pyproject.toml .ci/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[train,dev]'
	touch $@

demo: setup
	$(BIN)/astraflow run quickstart

test: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

chaos: setup
	$(BIN)/python -m pytest -s tests/chaos

docs: setup
	$(BIN)/python docs/generate.py
