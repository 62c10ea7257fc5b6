# The commands of the README. Nothing but make and Python 3.11 or newer need be there: the first target that needs
# Python makes .venv, and installs into it what it needs and is not there yet.
#
#   make demo PYTHON=/path/to/python     another Python for .venv
#   make demo MLX=cuda12                 MLX for NVIDIA GPUs (a new .venv: run `make clean` first)
#   make test ARGS="-k ring -x"          options for pytest, for test-all too
#   make gpu MLX=cuda13                  the tests that need an NVIDIA GPU (in a clone without .venv)

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo lab jaccl-lab test test-all gpu cuda bench docs notebooks lint js format clean

# A candidate is run, not only looked up: pyenv has names on the PATH for versions that it does not run.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
MLX ?= cpu

BIN := .venv/bin
RUN := $(BIN)/python -m
# Three files at a time, on two cores too: half of a test's time goes by with waiting, and the tests of a file share clusters.
# tests/conftest.py orders the files; xdist would start those with the fewest tests last, and some of them take longest.
THREE := -n 3 --dist loadfile --no-loadscope-reorder
demo_EXTRAS := $(MLX),mpi,demo
lab_EXTRAS := $(MLX),mpi,demo,experiment,lab
test_EXTRAS := $(MLX),mpi,demo,lab,test
gpu_EXTRAS := $(MLX),test
notebooks_EXTRAS := $(MLX),mpi,demo,experiment,lm
docs_EXTRAS := docs

help:
	@echo "make demo       start four local ranks and run notebooks/quickstart.ipynb on them"
	@echo "make lab        open that notebook in JupyterLab"
	@echo "make jaccl-lab  build JACCL for this Linux machine, over pretended cables, and say how to use it (needs g++)"
	@echo "make test       ruff, mypy, codespell, and the tests that take minutes: units, and the main paths on real ranks"
	@echo "make test-all   the same, and all other tests: faults, hosts, browser and notebooks"
	@echo "make gpu        the tests that need NVIDIA GPUs, and what machine they ran on (MLX=cuda12 or MLX=cuda13)"
	@echo "make bench      measure, and print the tables"
	@echo "make docs       build the documentation into site/"
	@echo "make notebooks  run the notebooks and keep them with their outputs in docs/notebooks"
	@echo "make lint       ruff, mypy, codespell and import-linter alone"
	@echo "make js         bundle the widgets' JavaScript, check its types, lint and test it (needs npm)"
	@echo "make format     lay the code out as ruff does"
	@echo "make clean      remove .venv and everything built"

demo: .venv/demo.stamp
	@$(RUN) allranks demo

lab: .venv/lab.stamp
	@echo "allranks: opening notebooks/quickstart.ipynb in JupyterLab (end it with Ctrl-C)"
	@$(BIN)/jupyter lab $$([ "$$(id -u)" = 0 ] && echo --allow-root) notebooks/quickstart.ipynb

jaccl-lab: .venv/test.stamp
	@$(RUN) tests.jaccl.lab.build

test: lint
	@echo "allranks: the quick tests"
	@$(RUN) pytest $(THREE) -m "not slow and not browser and not hosts" $(ARGS)
	@echo "allranks: all other tests (faults, hosts, browser, notebooks): make test-all"

test-all: lint
	@echo "allranks: all tests"
	@$(RUN) pytest $(THREE) $(ARGS)

gpu: cuda .venv/gpu.stamp
	@echo "allranks: tests on NVIDIA GPUs (the report goes to gpu-report.txt too)"
	@ALLRANKS_GPU=1 $(RUN) pytest -v -p no:cacheprovider tests/gpu tests/backends/test_nccl.py $(ARGS) >gpu-report.txt 2>&1; \
		status=$$?; cat gpu-report.txt; exit $$status

cuda:
	@case "$(MLX)" in cuda*) ;; *) echo "allranks: name MLX for your driver: make gpu MLX=cuda13 (driver 580 or newer)" \
		"or MLX=cuda12 (550 or newer), in a clone without .venv (make clean)"; exit 1 ;; esac

bench: .venv/demo.stamp
	@echo "allranks: benchmarks (several minutes; leave the machine alone meanwhile)"
	@$(RUN) benchmarks

docs: .venv/docs.stamp
	@echo "allranks: building the documentation"
	@NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict --quiet
	@echo "allranks: site/index.html"

notebooks: .venv/notebooks.stamp
	@echo "allranks: running the notebooks"
	@$(BIN)/python notebooks/execute.py

lint: .venv/test.stamp
	@echo "allranks: ruff"
	@$(RUN) ruff check --quiet .
	@$(RUN) ruff format --check --quiet . || { echo "allranks: run \`make format\`"; exit 1; }
	@echo "allranks: mypy (strict)"
	@$(RUN) mypy
	@echo "allranks: codespell"
	@$(BIN)/codespell
	@echo "allranks: import-linter"
	@said=$$($(BIN)/lint-imports --no-cache 2>&1) || { echo "$$said"; exit 1; }

js: .venv/test.stamp
	@echo "allranks: the widgets' JavaScript"
	@$(BIN)/python widgets/js-src/generate_types.py
	@cd widgets/js-src && npm ci --silent --no-audit --no-fund && npm run --silent build && npm run --silent check \
		&& npm test --silent

format: .venv/test.stamp
	@$(RUN) ruff check --fix --quiet .
	@$(RUN) ruff format .

clean:
	@rm -rf .venv site build dist artifacts .cache .mypy_cache .pytest_cache .ruff_cache widgets/allranks_widgets/static
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of extras, renewed when pyproject.toml changes, or the JavaScript that installing bundles.
.venv/%.stamp: pyproject.toml hatch_build.py $(wildcard widgets/js-src/src/* widgets/js-src/package-lock.json) | .venv/bin/python
	@echo "allranks: installing what \`make $*\` needs into .venv (once, a minute or two)"
	@$(RUN) pip install -qq --disable-pip-version-check -e ".[$($*_EXTRAS)]"
	@touch $@

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "allranks: needs Python 3.11 or newer and found none;" \
		"install one, or name it: make demo PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "allranks: needs Python 3.11 or newer, and PYTHON=$(PYTHON) is none"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "allranks: $(PYTHON) cannot make environments:" \
		"Debian and Ubuntu keep that part in a package of its own." \
		"Run: sudo apt-get install $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"; exit 1; }
	@echo "allranks: making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }
