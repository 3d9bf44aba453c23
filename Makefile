# `make demo` shows the whole loop, `make test` runs the tests; both set up everything they need in $(VENV).
# INSTALL=0 installs nothing and uses $(PYTHON) as it is (for machines without a network); the native module is then
# built in place.
PYTHON ?= python3
VENV ?= .venv
INSTALL ?= 1
TORCH ?= torch==2.13.0
# Not `?=`: an environment variable of this name must not redirect the demo (`make demo OUT=folder` does).
OUT = demo
JOBS ?= auto

# The tests start hundreds of processes, each of which would compile what it imports, where the environment forbids to
# store bytecode: a minute more.
unexport PYTHONDONTWRITEBYTECODE

ifeq ($(INSTALL),1)
RUN = $(VENV)/bin/python
else
RUN = $(PYTHON)
endif

# Targets without a set-up of their own use the virtual environment where there is one.
HERE = $(shell [ "$(INSTALL)" = 1 ] && [ -x $(VENV)/bin/python ] && echo $(VENV)/bin/python || echo $(PYTHON))
CLANG_FORMAT = $(HERE) -c 'import clang_format; clang_format.clang_format()'
CXX_FILES = $(wildcard csrc/*.[ch]pp csrc/*/*.[ch]pp tests/*/*.cpp)

.PHONY: help demo test test-full test-mutants test-sanitizers fuzz wheel gpu-test benchmark benchmark-summary release-check setup build lint format stubs clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST)

demo: setup-demo ## sweep (or replay the recorded sweep), train, export and use a selector
	$(RUN) -m examples.demo --out $(OUT)

test: setup ## the CPU tests that CI runs
	$(RUN) -m pytest -n $(JOBS) --dist loadfile

test-full: setup ## every CPU test, the long ones too
	$(RUN) -m pytest -n $(JOBS) --dist loadfile --full

test-mutants: setup ## plant defects in a copy of the tree; the tests must notice 95 % of them (an hour)
	$(RUN) -m tests.mutation.run --native

test-sanitizers: setup ## the CPU tests of the native layers under address, undefined-behaviour and thread sanitizers
	$(RUN) -m tests.sanitizers.run --kind address
	$(RUN) -m tests.sanitizers.run --kind thread

fuzz: setup ## coverage-guided fuzzing of what reads foreign bytes; needs clang and atheris
	$(RUN) -m tests.fuzz.run

wheel: setup ## source distribution and wheel of this Python version in dist/; the wheel is tested in a fresh virtual environment
	$(RUN) -m tests.wheel

gpu-test: build ## the GPU correctness suite; writes its record
	$(HERE) -m tests.gpu.run

benchmark: build ## every benchmark on this GPU: products, attention logits, casts, a mixture-of-experts layer, host time, dependent launches, compile time
	$(HERE) -m benchmarks.dense_fp8
	$(HERE) -m benchmarks.random_fp8
	$(HERE) -m benchmarks.choice_regret
	$(HERE) -m benchmarks.dense_bf16
	$(HERE) -m benchmarks.wgrad_fp8
	$(HERE) -m benchmarks.m_grouped_contiguous
	$(HERE) -m benchmarks.m_grouped_masked
	$(HERE) -m benchmarks.second_tile
	$(HERE) -m benchmarks.k_grouped
	$(HERE) -m benchmarks.mqa_logits
	$(HERE) -m benchmarks.batch_invariance
	$(HERE) -m benchmarks.scale_copies
	$(HERE) -m benchmarks.plain_kernels
	$(HERE) -m benchmarks.transpose_fp8
	$(HERE) -m benchmarks.host_time
	$(HERE) -m benchmarks.host_ops
	$(HERE) -m benchmarks.pdl
	$(HERE) -m examples.moe_layer --out "$$($(HERE) -m benchmarks.stamp)/moe_layer.json"
	$(HERE) -m benchmarks.compile_time --jobs 8

benchmark-summary: ## summary.json of every GPU model in benchmarks/results/, from the files beside it
	$(HERE) -m benchmarks.summary

release-check: ## fails while a committed record, snapshot or artefact is stale, or its choices are others now
	@$(HERE) -m benchmarks.stale; stale=$$?; $(HERE) -m benchmarks.today && exit $$stale

lint: ## ruff, clang-format and mypy; they change nothing
	$(HERE) -m ruff check .
	$(HERE) -m ruff format --check .
	@$(CLANG_FORMAT) --dry-run -Werror $(CXX_FILES)
	$(HERE) -m mypy

format: ## bring imports, Python and C++ into the committed format
	$(HERE) -m ruff check --select I --fix .
	$(HERE) -m ruff format .
	@$(CLANG_FORMAT) -i $(CXX_FILES)

stubs: build ## deep_gemm/_C.pyi, the types of the native module
	$(HERE) -m tests.stubs

# Torch first: a CPU build that is already there must not be replaced by a larger one that a dependency asks for.
# pybind11 is pinned because the committed stubs hold the signatures that it writes.
# The environment is made again only after pyproject.toml or setup.py has changed. The native module is always built in
# place, where only what is outdated is compiled: pip would compile everything, every time. Nor does pip compile Python
# (--no-compile): most of what it installs is never imported. The warning is of folders with the names of the packages:
# they are the packages.
.PHONY: setup-demo setup-test
setup: setup-test ## the virtual environment, with what `make test` and `make lint` need
EXTRAS_test = test,dev
EXTRAS_demo = demo
ifeq ($(INSTALL),1)
setup-demo setup-test: setup-%: $(VENV)/.installed-%
endif
setup-demo setup-test:
	@echo "building the native module (minutes, the first time)"
	$(RUN) setup.py -q build_ext --inplace

$(VENV)/.installed-demo $(VENV)/.installed-test: $(VENV)/.installed-%: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet --no-compile "$(TORCH)"
	$(VENV)/bin/python -m pip install --quiet "setuptools>=77" wheel "pybind11==3.1.0"
	PYTHONWARNINGS="ignore:Editable installation" DG_BUILD_NATIVE=0 $(VENV)/bin/python -m pip install --quiet --no-compile --no-build-isolation -e ".[$(EXTRAS_$*)]"
	@touch $@

build: ## the native module, in place
	$(HERE) setup.py -q build_ext --inplace

clean: ## remove what was built and set up
	rm -rf build $(VENV) $(OUT) deep_gemm/_C*.so *.egg-info
