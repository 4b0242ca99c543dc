# Every target sets up what it needs. Only Python 3.11 or newer (with venv) has to be there: PYTHON=... picks one.

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
PIP := "$(BIN)/python" -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed

CANDIDATES := $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14 python)
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

# Test processes, one thread each: two processes with torch's own threads would fight over the cores.
JOBS ?= 2

.PHONY: help install demo readme test lint types docs wheel sdist smoke third-party bench pictures clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    install, then train, quantize, export and check a model on the embedded data"
	@echo "make test    install, then lint, types and every test"
	@echo "make lint    ruff over the whole tree"
	@echo "make types   mypy --strict over the built wheel"
	@echo "make docs    the site of the documentation, in build/site"
	@echo "make readme  make demo, and what it prints into README.md"
	@echo "make wheel   the wheel, in dist/"
	@echo "make sdist   the wheel and the source distribution, in dist/"
	@echo "make smoke   installs each of the two into an empty environment and uses it there"
	@echo "make third-party  THIRD-PARTY.md anew: dependencies and their licenses"
	@echo "make bench   every script in benchmarks/"
	@echo "make pictures   pictures of the latest run's page for docs/pictures, after make demo; needs Chromium"
	@echo "make clean   remove what was built (the environment and the runs stay)"

demo: install
	"$(BIN)/qat-tft" train --use-qat --use-gradient-checkpointing
	"$(BIN)/qat-tft" export --int8
	"$(BIN)/qat-tft" check
	"$(BIN)/qat-tft" report
	@echo
	@echo 'Try it on data of your own: `. $(VENV)/bin/activate` lets this shell find qat-tft.'

# The width is that of the page: nothing is wrapped or folded.
readme: install
	mkdir -p build
	COLUMNS=120 $(MAKE) --no-print-directory demo > build/demo.txt
	"$(BIN)/python" docs/readme_block.py build/demo.txt README.md
	cp "runs/$$(cat runs/latest)/forecast.png" docs/pictures/forecast.png

# A file's tests stay in one process, so that what a module's fixtures train is trained once.
test: lint types
	OMP_NUM_THREADS=1 "$(BIN)/pytest" -n $(JOBS) --dist loadfile --durations=20

lint: install
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check --quiet .

# mypy searches the working folder first, so it runs inside the unpacked wheel: what is checked is what users get.
types: wheel
	rm -rf build/wheelcheck
	$(PIP) install --quiet --no-deps --no-index --target build/wheelcheck dist/qat_tft-*.whl
	cd build/wheelcheck && "$(BIN)/mypy" --config-file "$(CURDIR)/pyproject.toml" \
		--cache-dir "$(CURDIR)/.mypy_cache" --package qat_tft

# NO_MKDOCS_2_WARNING: what Material says about its successor is not about these pages.
docs: install
	NO_MKDOCS_2_WARNING=1 "$(BIN)/mkdocs" build --strict

# setuptools copies into build/lib and never removes what has left the tree since.
wheel: install
	rm -rf build/lib build/bdist.* dist
	$(PIP) wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir dist .

# The hook of PEP 517 that every build tool calls, so that no build tool is needed.
sdist: wheel
	rm -rf qat_tft.egg-info
	"$(BIN)/python" -c "from setuptools import build_meta; build_meta.build_sdist('dist')" > build/sdist.log

# From constraints.txt and the archive alone: no package of .venv, and nothing of the tree but the script.
smoke: sdist
	@for archive in dist/*; do \
		echo "== $$archive"; \
		rm -rf build/smoke && "$(BIN)/python" -m venv build/smoke || exit 1; \
		build/smoke/bin/python -m pip install --quiet --constraint constraints.txt torch || exit 1; \
		build/smoke/bin/python -m pip install --quiet --constraint constraints.txt "$$archive" || exit 1; \
		tools/smoke.sh build/smoke/bin --export || exit 1; \
	done

# Extras, and the runtime of other machines, are read from a folder of their own: .venv does without them.
third-party: install
	rm -rf build/third-party
	$(PIP) install --quiet --no-deps --constraint constraints.txt --target build/third-party \
		onnxruntime openvino tensorboard mlflow-skinny sqlalchemy alembic wandb trackio
	"$(BIN)/python" tools/third_party.py build/third-party > THIRD-PARTY.md

bench: install
	@for script in $$(grep -l __main__ benchmarks/*.py); do \
		echo "== $$script"; \
		"$(BIN)/python" "$$script" || exit 1; \
	done

pictures: install
	"$(BIN)/python" docs/pictures/make.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(wildcard qat_tft export tests benchmarks examples) -name __pycache__ -type d -prune -exec rm -rf {} +

install: $(STAMP)

# torch first and alone: taken through the package's range it may be another release with gigabytes of CUDA.
$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo "Installing torch into $(VENV)"
	$(PIP) install --quiet --constraint constraints.txt torch
	@echo "Installing qat-tft and its tools into $(VENV)"
	$(PIP) install --quiet --constraint constraints.txt setuptools
	$(PIP) install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev,docs]'
	@touch $@

$(VENV)/bin/pip:
	@for python in $(CANDIDATES); do \
		if "$$python" -c '$(USABLE)' 2>/dev/null; then \
			echo "Creating $(VENV) with $$("$$python" -c 'import sys; print(sys.executable)')"; \
			exec "$$python" -m venv $(VENV); \
		fi; \
	done; \
	echo "make: no Python 3.11 or newer with venv and ensurepip among: $(CANDIDATES)" >&2; \
	echo "make: install one (Debian: python3 and python3-venv), or name it: make PYTHON=/path/to/python" >&2; \
	exit 1
