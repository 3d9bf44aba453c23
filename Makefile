# Two commands set everything up: `make demo` (the main job) and `make test` (what CI runs).
PYTHON ?= python3
VENV ?= .venv
INSTALL ?= 1
TORCH ?= torch==2.13.0

build:
	$(PYTHON) setup.py -q build_ext --inplace

.PHONY: build
