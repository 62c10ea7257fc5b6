# The commands of the README. Nothing but make and Python 3.11 or newer need be there: the first target that needs
# Python makes .venv, and installs into it what it needs and is not there yet.
#
#   make demo PYTHON=/path/to/python     another Python for .venv
#   make demo MLX=cuda12                 MLX for NVIDIA GPUs (a new .venv: run `make clean` first)
#   make test ARGS="-k ring -x"          options for pytest, for test-all too
#   make gpu MLX=cuda13                  the tests that need an NVIDIA GPU (in a clone without .venv)
#
# All versions are those of constraints.txt, so that a clone installs tomorrow what it installs today.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo lab jaccl-lab test test-all test-newest gpu cuda bench docs notebooks lint js format constraints clean

# A candidate is run, not only looked up: pyenv has names on the PATH for versions that it does not run.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
MLX ?= cpu

BIN := .venv/bin
RUN := $(BIN)/python -m
# Three files at a time, on two cores too: half of a test's time goes by with waiting, and the tests of a file share clusters.
# tests/conftest.py orders the files; xdist would start those with the fewest tests last, and some of them take longest.
THREE := -n 3 --dist loadfile --no-loadscope-reorder
QUICK := -m "not slow and not browser and not hosts"
demo_EXTRAS := $(MLX),mpi,demo
lab_EXTRAS := $(MLX),mpi,demo,experiment,lab
test_EXTRAS := $(MLX),mpi,demo,lab,test
gpu_EXTRAS := $(MLX),test
notebooks_EXTRAS := $(MLX),mpi,demo,experiment,lm
docs_EXTRAS := docs

CONSTRAINTS := constraints.txt
# $(call install,ENVIRONMENT,WHAT): with uv, which takes about half of pip's time. uv does not read pip's settings: pip
# installs where these name an index, and where uv cannot be had or fails.
# The variables hold for the build of allranks, too: pip before 25.3 reads PIP_CONSTRAINT there, later ones PIP_BUILD_CONSTRAINT.
install = if $(1)/bin/python -m pip config list | grep -E '\.(index-url|no-index)=' >/dev/null; \
	then echo "allranks: installing with pip, whose settings name an index that uv does not read"; $(call pip,$(1),$(2)); \
	else { $(call pip,$(1),uv) && $(call uv,$(1),$(2)); } \
		|| { echo "allranks: uv could not install this; installing with pip (slower)"; $(call pip,$(1),$(2)); }; fi
pip = PIP_CONSTRAINT=$(CONSTRAINTS) PIP_BUILD_CONSTRAINT=$(CONSTRAINTS) \
	$(1)/bin/python -m pip install -qq --disable-pip-version-check $(2)
# Compiled here on all cores; else each rank of the first world would compile the same modules.
uv = UV_CONSTRAINT=$(CONSTRAINTS) UV_BUILD_CONSTRAINT=$(CONSTRAINTS) \
	$(1)/bin/uv pip install --quiet --compile-bytecode --python $(1)/bin/python $(2)

help:
	@echo "make demo         start four local ranks and run notebooks/quickstart.ipynb on them"
	@echo "make lab          open that notebook in JupyterLab"
	@echo "make jaccl-lab    build JACCL for this Linux machine, over pretended cables, and say how to use it (needs g++)"
	@echo "make test         ruff, mypy, codespell, and the tests that take minutes: units, and the main paths on real ranks"
	@echo "make test-all     the same, and all other tests: faults, hosts, browser and notebooks"
	@echo "make test-newest  the quick tests with the newest version of every package, in .venv-newest"
	@echo "make gpu          the tests that need NVIDIA GPUs, and what machine they ran on (MLX=cuda12 or MLX=cuda13)"
	@echo "make bench        measure, and print the tables"
	@echo "make docs         build the documentation into site/"
	@echo "make notebooks    run the notebooks and keep them with their outputs in docs/notebooks"
	@echo "make lint         ruff, mypy, codespell and import-linter alone"
	@echo "make js           bundle the widgets' JavaScript, check its types, lint and test it (needs npm)"
	@echo "make format       lay the code out as ruff does"
	@echo "make constraints  renew constraints.txt, the exact versions that are installed, and print what moved"
	@echo "make clean        remove the environments and everything built"

demo: .venv/demo.stamp
	@$(RUN) allranks demo

lab: .venv/lab.stamp
	@echo "allranks: opening notebooks/quickstart.ipynb in JupyterLab (end it with Ctrl-C)"
	@$(BIN)/jupyter lab $$([ "$$(id -u)" = 0 ] && echo --allow-root) notebooks/quickstart.ipynb

jaccl-lab: .venv/test.stamp
	@$(RUN) tests.jaccl.lab.build

test: lint
	@echo "allranks: the quick tests"
	@$(RUN) pytest $(THREE) $(QUICK) $(ARGS)
	@echo "allranks: all other tests (faults, hosts, browser, notebooks): make test-all"

test-all: lint
	@echo "allranks: all tests"
	@$(RUN) pytest $(THREE) $(ARGS)

test-newest: CONSTRAINTS :=
test-newest:
	@rm -rf .venv-newest
	@$(MAKE) --no-print-directory .venv-newest/bin/python
	@echo "allranks: installing the newest version of every package into .venv-newest"
	@$(call install,.venv-newest,-e ".[$(test_EXTRAS)]")
	@.venv-newest/bin/python -m constraints compare
	@echo "allranks: the quick tests"
	@.venv-newest/bin/python -m pytest $(THREE) $(QUICK) $(ARGS)

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

constraints: CONSTRAINTS :=
constraints: | .venv/bin/python
	@$(call pip,.venv,uv)
	@$(RUN) constraints renew

clean:
	@rm -rf .venv .venv-newest site build dist artifacts .cache .mypy_cache .pytest_cache .ruff_cache widgets/allranks_widgets/static
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of extras, renewed when pyproject.toml or constraints.txt changes, or the JavaScript that
# installing bundles.
.venv/%.stamp: pyproject.toml constraints.txt hatch_build.py $(wildcard widgets/js-src/src/* widgets/js-src/package-lock.json) \
		| .venv/bin/python
	@echo "allranks: installing what \`make $*\` needs into .venv (once, a minute or two)"
	@$(call install,.venv,-e ".[$($*_EXTRAS)]")
	@touch $@

.venv/bin/python .venv-newest/bin/python:
	@test -n "$(PYTHON)" || { echo "allranks: needs Python 3.11 or newer and found none;" \
		"install one, or name it: make demo PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "allranks: needs Python 3.11 or newer, and PYTHON=$(PYTHON) is none"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "allranks: $(PYTHON) cannot make environments:" \
		"Debian and Ubuntu keep that part in a package of its own." \
		"Run: sudo apt-get install $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"; exit 1; }
	@echo "allranks: making $(@:/bin/python=) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(@:/bin/python=) || { rm -rf $(@:/bin/python=); exit 1; }
