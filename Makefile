# make demo         the whole system on this machine, one guest from claim to release (KEEP=1 leaves it running)
# make test         everything continuous integration runs: lint, types, import directions, tests with coverage
# make lint         the first three of these
# make format       lets ruff put the sources in order
# make samples      writes the sample configurations in etc/ anew, after options changed
# make constraints  resolves the newest versions and writes etc/constraints.txt anew
# make clean        removes the virtual environment and all caches
#
# PYTEST_ARGS adds to the test run: make test PYTEST_ARGS='-k candidates -x'

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
LIBVIRT := $(VENV)/.libvirt
CONSTRAINTS := etc/constraints.txt
EXTRAS := postgresql,mysql,test,lint
PIP_FLAGS := --quiet --disable-pip-version-check

.PHONY: demo test lint format samples constraints clean packages

demo: $(INSTALLED)
	@$(BIN)/python -m tests.demo

test: packages lint $(LIBVIRT)
	$(BIN)/python -m pytest --cov --cov-report=term $(PYTEST_ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

samples: $(INSTALLED)
	$(BIN)/oslo-config-generator --config-file etc/placement/config-generator.conf
	$(BIN)/oslo-config-generator --config-file etc/compute-agent/config-generator.conf
	$(BIN)/oslopolicy-sample-generator --config-file etc/placement/policy-generator.conf

# Database servers and the like, which tests use where they find them; only root can install them.
packages:
	@if [ "$$(id -u)" = 0 ] && [ -x tests/install-packages.sh ]; then tests/install-packages.sh; fi

# Debian keeps the pip of new environments in a package of its own (python3-venv).
$(INSTALLED): setup.cfg $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or newer is needed; name one with make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	    && echo "Installing python3-venv ..." && apt-get -qq update \
	    && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y python3-venv >/dev/null; } \
	    || { echo "$(PYTHON) cannot make virtual environments: install the package python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV) ..."
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install $(PIP_FLAGS) --constraint $(CONSTRAINTS) setuptools
	@$(BIN)/pip install $(PIP_FLAGS) --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $@

# libvirt-python is built, where there are a libvirt to build it against and a compiler.
$(LIBVIRT): $(INSTALLED) | packages
	@if pkg-config --exists libvirt 2>/dev/null; then \
	    $(BIN)/pip install $(PIP_FLAGS) --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[libvirt]' \
	        && touch $@ || echo "Tests of the libvirt driver will be skipped: libvirt-python cannot be built"; \
	fi

constraints:
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(PIP_FLAGS) --upgrade setuptools
	$(BIN)/pip install $(PIP_FLAGS) --no-build-isolation --editable '.[$(EXTRAS),libvirt]'
	sed -i '/^[^#]/d' $(CONSTRAINTS)
	$(BIN)/pip freeze --all --exclude-editable --exclude pip >> $(CONSTRAINTS)
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) build dist *.egg-info .tox .coverage .coverage.* htmlcov \
	    .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
