# `make demo` does the main job, `make test` is what CI runs; both set up everything they need in $(VENV).
# INSTALL=0 uses $(PYTHON) as it is and installs nothing (for machines without a network); the extension is then built in place.
PYTHON ?= python3
VENV ?= .venv
INSTALL ?= 1
TORCH ?= torch==2.13.0
OUT = demo

ifeq ($(INSTALL),1)
RUN = $(VENV)/bin/python
else
RUN = $(PYTHON)
endif

# What needs no set-up of its own takes the virtual environment where there is one.
HERE = $(shell [ "$(INSTALL)" = 1 ] && [ -x $(VENV)/bin/python ] && echo $(VENV)/bin/python || echo $(PYTHON))

.PHONY: help demo test gpu-test benchmark benchmark-summary release-check build clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST)

demo: setup-demo ## sweep (or replay the recorded sweep), train, export and use a selector
	$(RUN) -m examples.demo --out $(OUT)

test: setup-test ## the CPU test suite, as CI runs it
	$(RUN) -m pytest -n auto --dist loadfile

gpu-test: build ## the GPU correctness suite; writes its record
	$(HERE) -m tests.gpu.run --out benchmarks/results/h200/gpu_record.json

benchmark: build ## every benchmark on this GPU: dense and grouped products, a mixture-of-experts layer, host time, dependent launches, compile time
	$(HERE) -m benchmarks.dense_fp8
	$(HERE) -m benchmarks.dense_bf16
	$(HERE) -m benchmarks.wgrad_fp8
	$(HERE) -m benchmarks.m_grouped_contiguous
	$(HERE) -m benchmarks.m_grouped_masked
	$(HERE) -m benchmarks.k_grouped
	$(HERE) -m benchmarks.transpose_fp8
	$(HERE) -m benchmarks.host_time
	$(HERE) -m benchmarks.pdl
	$(HERE) -m examples.moe_layer --json benchmarks/results/h200/moe_layer.json
	$(HERE) -m benchmarks.compile_time --jobs 8

benchmark-summary: ## benchmarks/results/h200/summary.json from the files beside it
	$(HERE) -m benchmarks.summary

release-check: ## fails while any committed record, snapshot or artefact is stale
	$(HERE) -m benchmarks.stale

# Torch first: a CPU build that is already there must not be replaced by a larger one that a dependency asks for.
.PHONY: setup-demo setup-test
setup-demo setup-test: setup-%:
ifeq ($(INSTALL),1)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet "$(TORCH)"
	$(VENV)/bin/python -m pip install --quiet "setuptools>=68" wheel "pybind11>=2.12,<4"
	$(VENV)/bin/python -m pip install --quiet --no-build-isolation -e ".[$*]"
else
	$(PYTHON) setup.py -q build_ext --inplace
endif

build:
	$(HERE) setup.py -q build_ext --inplace

clean:
	rm -rf build $(VENV) $(OUT) deep_gemm/_C*.so *.egg-info
