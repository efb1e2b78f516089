# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test docs fuzz lint types format clean

demo: $(VENV)/.ready
	$(BIN)/labelsieve demo

test: lint types
	$(BIN)/python -m pytest -n 2 -rs

# The site, in site/; nothing is loaded from the network, while it is built or read. The variable silences an advertisement.
docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html is the home page"

# `make test` tries a few damages, always the same ones; this tries many random ones and kills real processes.
EXAMPLES ?= 300
MINUTES ?= 10

fuzz: $(VENV)/.ready
	LABELSIEVE_FUZZ=$(EXAMPLES) $(BIN)/python -m pytest tests/fuzz
	$(BIN)/python -m tests.fuzz.kills --minutes $(MINUTES) --seed $$(date +%s)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# --no-compile: byte code is made on first import, which is far quicker than compiling all of torch.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11) and "labelsieve needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[photos,plots,test]'
	touch $@

clean:
	rm -rf $(VENV) runs site .mypy_cache .ruff_cache .pytest_cache .hypothesis
