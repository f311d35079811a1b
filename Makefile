# Every target works as the first command on a fresh clone.
#   make test ARGS="-k ids"     more arguments for pytest
#   make test WORKERS=4         that many pytest processes
#   make test UV=               install with pip though uv is there

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
UV ?= $(shell command -v uv)
INSTALL := $(if $(UV),$(UV) pip install --python $(PYTHON),$(PYTHON) -m pip install)
WORKERS ?= 2
PYTEST := $(PYTHON) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
FUZZ_FILES ?= 20000
AIRFLOW ?= 3.1.8
COMPAT := .compat/$(AIRFLOW)

.DEFAULT_GOAL := help
.PHONY: help test demo up down status e2e compat check format schemas bench fuzz soak constraints clean java

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

test: java $(INSTALLED) ## run the tests, without the slow ones
	$(PYTEST) -m "not slow" $(ARGS)

demo: java $(INSTALLED) ## the whole story: Airflow, Spark, a kill, an audit, time travel
	$(PYTHON) -m demo

up: java $(INSTALLED) ## start Airflow, Spark and an S3 server on this machine
	$(PYTHON) -m stack up

status: $(PYTHON) ## show what of it runs
	@$(PYTHON) -m stack status || test $$? -eq 3

down: $(PYTHON) ## stop it, and leave no process behind
	$(PYTHON) -m stack down

e2e: java $(INSTALLED) ## start it all, run every example Dag over REST, stop it all
	$(PYTEST) tests/stack/test_e2e.py $(ARGS)

compat: java $(PYTHON) ## run the provider's tests on another Airflow: AIRFLOW=3.1.8
	test -x $(COMPAT)/bin/python || $(PYTHON) -m venv $(COMPAT)
	$(if $(UV),$(UV) pip install --python $(COMPAT)/bin/python,$(COMPAT)/bin/python -m pip install) \
	    apache-airflow==$(AIRFLOW) 'fastapi<0.137' 'cadwyn<6.2' 'svcs<26' \
	    apache-airflow-providers-amazon apache-airflow-providers-google \
	    apache-airflow-providers-microsoft-azure -e './core[all]' -e '.[dev]'
	$(COMPAT)/bin/python -m pytest -W default -m "not slow" tests/airflow $(ARGS)

check: $(INSTALLED) ## formatting, lint, types, layers
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(INSTALLED) ## format the code and mend what ruff can
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

schemas: $(INSTALLED) ## generate the wire layout from schemas/*.fbs
	$(PYTHON) schemas/generate.py
	$(VENV)/bin/ruff format core/icefloe/format/wire.py

bench: $(INSTALLED) ## measure icefloe beside the official library
	$(PYTHON) -m benchmarks $(ARGS)

fuzz: $(INSTALLED) ## decode hostile bytes, FUZZ_FILES of them
	FUZZ_FILES=$(FUZZ_FILES) $(PYTEST) -m fuzz --timeout 3600 $(ARGS)

soak: java $(INSTALLED) ## run the slow tests only
	$(PYTEST) -m slow --timeout 1800 $(ARGS)

constraints: $(INSTALLED) ## upgrade every dependency and write constraints.txt
	$(PYTHON) -m pip install --upgrade --upgrade-strategy eager -e './core[all]' -e '.[dev]'
	sed -n '/^#/p' constraints.txt > $(VENV)/constraints.txt
	$(PYTHON) -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==' >> $(VENV)/constraints.txt
	mv $(VENV)/constraints.txt constraints.txt
	touch $(INSTALLED)

clean: ## remove caches and build results; the environment stays
	rm -rf build dist core/dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml core/pyproject.toml constraints.txt | $(PYTHON)
	@echo "Installing what constraints.txt pins into $(VENV): some minutes the first time ($(VENV)/install.log)"
	@$(INSTALL) -c constraints.txt -e './core[all]' -e '.[dev]' > $(VENV)/install.log 2>&1 \
	    || { cat $(VENV)/install.log >&2; exit 1; }
	@touch $@

# A name on the PATH may be a version manager's shim that fails, or a Python that Debian packs without
# what an environment needs: each candidate is run.
$(PYTHON):
	@for python in python3 python3.13 python3.12; do \
	    if $$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then \
	        echo "Creating $(VENV) with $$($$python --version)"; \
	        $$python -m venv $(VENV) && exit 0; \
	        rm -rf $(VENV); exit 1; \
	    fi; \
	done; \
	echo "Python 3.12 or newer is needed. Install it (apt install python3.12 python3.12-venv," >&2; \
	echo "brew install python@3.12, pyenv install 3.12, or from python.org) and run make again." >&2; \
	exit 1

java:
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 \
	    | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1); \
	if [ "$${version:-0}" -lt 17 ]; then \
	    echo "Java 17 or newer is needed by Spark; found $${version:-none}. Install it" >&2; \
	    echo "(apt install openjdk-17-jre-headless, or brew install openjdk@17), put java on" >&2; \
	    echo "the PATH or set JAVA_HOME, and run make again." >&2; \
	    exit 1; \
	fi
