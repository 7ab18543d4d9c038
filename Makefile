# make demo         the whole system on this machine, one guest from claim to release (KEEP=1 leaves it running)
# make adopt-demo   moves a cloud from OpenStack Placement to this service, and back (DATABASE=postgresql, mariadb)
# make test-kills   kills such a move at many of its statements, on each kind of database
# make test         all checks of continuous integration: lint, types, import directions, site, tests
# make test-long    the same with the longest tests, and with all random examples, rounds and kills: 35 minutes
# make coverage     the same tests, and a list of the lines that no test reaches; takes twice as long
# make check        the checks for each change: lint, types, import directions, tests that need no server, and some of
#                   these tests with the lowest versions of dependencies
# make mutants      changes single tokens of the code, and checks that a quick test fails: MUTANTS=200 SEED=1;
#                   FOLDERS='compute_agent/isolation' selects folders
# make test-vm      makes a virtual machine with cache and bandwidth control, and runs the tests that need it
# make test-failover  30 failures of each database under load, with a table of the results: a quarter of an hour
# make test-upgrade upgrades from earlier releases under load, and rollbacks, on each database, with a table: half an hour
# make test-shadow  random requests to OpenStack Placement through placement-shadow: half an hour
# make test-openstack  Nova with guests on this service and on OpenStack Placement, and classes of guests on two hosts:
#                   40 minutes
# make test-dependencies  quick tests with the lowest versions, with the versions of OpenStack's series, and beside Nova
# make test-packages  builds, installs and removes Debian packages and an image; renders kolla's templates: ten minutes
# make test-nova    Nova's own functional tests about Placement, on both services, and Nova's requests for flavors
# make lint         style, types and import directions
# make doc          builds the site in doc/_build/html; a warning is an error
# make man          writes the pages for man(1) to doc/_build/man
# make doc-links    checks the links that leave the site (needs the internet)
# make dist         a wheel and an sdist of the last commit in dist/, for an installation elsewhere
# make release      a release with changelog, packages and checksums: VERSION=1.2.0
# make deb          Debian packages in dist/
# make image        a container image of the service, by buildah (BUILDER='docker build' for another builder)
# make format       formats the sources with ruff, and wraps long lines of pages
# make samples      generates the sample configurations in etc/, after a change of options
# make constraints  resolves the newest versions, and writes them to etc/constraints.txt
# make clean        removes the virtual environment and all caches
#
# Arguments for the programs behind some targets:
#   make test PYTEST_ARGS='-k candidates -x'
#   make release VERSION=1.2.0 RELEASE_ARGS='--key operator@example.org'
#   make test-upgrade UPGRADE_ARGS='sqlite --releases 1'
#   make test-failover FAILOVER_ARGS='galera --faults 5 --seed 1'

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
INSTALLED := $(VENV)/.installed
LIBVIRT := $(VENV)/.libvirt
COSMIC_RAY := $(VENV)/.cosmic-ray
CYCLONEDX := $(VENV)/.cyclonedx
CONSTRAINTS := etc/constraints.txt
EXTRAS := postgresql,mysql,memcached,console,tracing,systemd,test,lint,doc,dist
PIP := $(BIN)/pip --quiet --disable-pip-version-check
# All tests of a module run in one process, so that the module starts its servers once; tests/conftest.py has the
# other rules. The run ends if a process crashes, because with a new process it would wait forever.
BY_MODULE := --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# Quick tests compute more than they wait, so one process more than processors is enough.
PARALLEL := --numprocesses $(shell expr $$(nproc) + 1) $(BY_MODULE)
# Tests with servers wait as much as they compute, so there are two processes for each processor.
WAITING := --numprocesses $(shell expr $$(nproc) \* 2) $(BY_MODULE)
# Tests that need a virtual machine or a cloud, or build packages, have their own targets.
HERE := not vm and not openstack and not packages and not nova
QUICK := -m 'not slow and not root and not postgresql and not mysql and not vm' --database sqlite \
    tests/placement tests/placement_extras tests/compute_agent --ignore=tests/placement/api_ref
# Each process that collects the generated requests needs half a minute for it, so one separate process runs them.
GENERATED := tests/placement/api_ref/test_generated_requests.py
REST := -p no:schemathesis --ignore=$(GENERATED)
# `make check` runs only the quick tests that take less than 0.15 seconds.
BRIEF := $(QUICK) --brief
SDIST := build/sdist
BUILDER := buildah build --format docker --timestamp $$SOURCE_DATE_EPOCH
SITE := doc/_build/html
SPHINX := $(BIN)/sphinx-build -W --keep-going -n -q
# If this variable is set, each of the hundreds of programs that tests start compiles all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo adopt-demo test quick-tests lowest-tests generated-tests compiled-tests test-long test-kills coverage check mutants test-vm test-failover test-upgrade test-shadow test-openstack test-nova \
    test-packages test-dependencies lint format samples doc man doc-links dist deb image release constraints clean packages

demo: $(RUNTIME)
	@$(BIN)/python -m tests.demo

adopt-demo: packages $(INSTALLED)
	@$(BIN)/python -W ignore -m tests.adopt_demo

# Two fifths of the random examples and of the repetitions, and no test that is marked long.
test: export PLACEMENT_EXAMPLES_PERCENT ?= 40
test: HERE += and not long

# apt and pip run at the same time; then mypy and sphinx use one processor each. REREAD=-E builds the whole site,
# because tests use its search, and a site that was built in parts lacks entries of the index.
test test-long: $(RUNTIME)
	@$(MAKE) --no-print-directory --jobs 2 packages $(LIBVIRT)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint doc lowest-tests generated-tests compiled-tests REREAD=-E
	PLACEMENT_BUILT_SITE=$(SITE) $(BIN)/python -m pytest -q -m '$(HERE)' $(WAITING) $(REST) $(PYTEST_ARGS)

coverage: packages lint $(LIBVIRT)
	$(BIN)/python -m pytest -q -m '$(HERE)' $(WAITING) --cov --cov-report=term $(PYTEST_ARGS)

# A fifth of the random examples that all tests try.
check mutants: export PLACEMENT_EXAMPLES_PERCENT ?= 20

# The linters use one processor, the tests the others. The lowest versions follow the linters.
check: $(INSTALLED)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint quick-tests lowest-tests

generated-tests: $(INSTALLED)
	$(BIN)/python -m pytest -q $(GENERATED)

# Compiles the test modules once; otherwise each process that runs tests compiles them all. These processes report
# the errors that are ignored here.
compiled-tests: $(INSTALLED)
	@$(BIN)/python -m pytest -q --collect-only $(REST) > /dev/null || true

quick-tests: $(INSTALLED)
	$(BIN)/python -m pytest -q $(BRIEF) $(PARALLEL) -p no:schemathesis $(PYTEST_ARGS)

# The tests that call libraries, with the lowest versions that setup.cfg allows. The first run installs these versions.
lowest-tests: $(INSTALLED)
	$(BIN)/python -m tests.dependencies lowest --core

mutants: check $(COSMIC_RAY)
	$(BIN)/python -m tests.mutants $(if $(MUTANTS),--count $(MUTANTS)) $(if $(SEED),--seed $(SEED)) \
	    $(addprefix --folder ,$(FOLDERS)) -- $(QUICK)

test-kills: export KILL_POINTS ?= 100

test-kills: packages $(INSTALLED)
	$(BIN)/python -m pytest -q tests/placement_extras/migration/test_adoption_killed.py $(PYTEST_ARGS)

test-vm: packages $(INSTALLED)
	$(BIN)/python -m tests.vm.machine
	$(BIN)/python -m pytest tests/vm $(PYTEST_ARGS)

test-failover: packages $(INSTALLED)
	$(BIN)/python -m tests.placement.failover $(FAILOVER_ARGS)

test-upgrade: packages $(INSTALLED)
	$(BIN)/python -m tests.upgrade $(UPGRADE_ARGS)

test-shadow: packages $(INSTALLED)
	$(BIN)/python -m tests.placement_extras.shadow.load --clients 1 --requests 18000
	$(BIN)/python -m tests.placement_extras.shadow.load --clients 3 --requests 18000

test-openstack: packages $(INSTALLED) $(LIBVIRT)
	$(BIN)/python -m pytest -q -m openstack tests/openstack $(PYTEST_ARGS)

test-dependencies: $(INSTALLED)
	$(BIN)/python -m tests.dependencies $(PYTEST_ARGS)

test-packages: packages $(INSTALLED)
	$(BIN)/python -m pytest tests/packages -m packages $(PYTEST_ARGS)

test-nova: $(INSTALLED)
	$(BIN)/python -m pytest -q -m nova tests/nova $(PYTEST_ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports
	$(BIN)/python -m tests.style

format: $(INSTALLED)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/python -m tests.paragraphs README.md CONTRIBUTING.md $$(find doc benchmarks -name '*.md' -not -path 'doc/_build/*')

samples: $(INSTALLED)
	$(BIN)/oslo-config-generator --config-file etc/placement/config-generator.conf
	$(BIN)/oslo-config-generator --config-file etc/compute-agent/config-generator.conf
	$(BIN)/oslopolicy-sample-generator --config-file etc/placement/policy-generator.conf

doc: $(INSTALLED)
	$(SPHINX) $(REREAD) -b html doc $(SITE)
	@echo "The site is in $(SITE)/index.html"

man: $(RUNTIME)
	$(BIN)/python doc/_ext/man.py doc/_build/man
	@echo "The pages are in doc/_build/man; read one with man -l"

doc-links: $(INSTALLED)
	$(BIN)/sphinx-build --keep-going -n -q -b linkcheck doc doc/_build/linkcheck

dist: $(INSTALLED)
	@$(BIN)/python -m tests.builds dist

deb: $(INSTALLED)
	@$(BIN)/python -m tests.builds dist --debian

image: $(INSTALLED)
	@$(BIN)/python -m tests.builds $(SDIST)
	export SOURCE_DATE_EPOCH=$$(stat --format=%Y $(SDIST)/SHA256SUMS) && $(BUILDER) \
	    --build-arg SOURCE_DATE_EPOCH=$$SOURCE_DATE_EPOCH --tag placement-compute \
	    --file etc/packages/Containerfile $(SDIST)
	$(if $(findstring buildah,$(BUILDER)),$(BIN)/python -m tests.image_names localhost/placement-compute)

release: packages $(CYCLONEDX)
	@$(BIN)/python -m tests.release $(VERSION) $(RELEASE_ARGS)

# Database servers and other programs, which tests use if they are installed. Only root can install them.
packages:
	@if [ "$$(id -u)" = 0 ] && [ -x tests/install-packages.sh ]; then tests/install-packages.sh; fi

# Only the product and its libraries, without compiling, so that the first demo takes a minute: an installation with
# compiling takes four times as long. Debian has the pip of new environments in a separate package (python3-venv).
$(RUNTIME): setup.cfg pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or newer is necessary: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	    && echo "Installing python3-venv ..." && apt-get -qq update \
	    && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y python3-venv >/dev/null; } \
	    || { echo "$(PYTHON) cannot make virtual environments: install the package python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV) ..."
	@rm -rf *.egg-info  # a folder from an earlier build would hide the entry points of the installed distribution
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --constraint $(CONSTRAINTS) setuptools
	@$(PIP) install --no-compile --constraint $(CONSTRAINTS) --no-build-isolation --editable .
	@touch $@

# The libraries that only tests, lint and documentation need.
$(INSTALLED): $(RUNTIME)
	@echo "Installing the libraries for tests into $(VENV) ..."
	@$(PIP) install --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $@

# pip builds libvirt-python only if the machine has libvirt's headers and a compiler.
$(LIBVIRT): $(INSTALLED) | packages
	@if pkg-config --exists libvirt 2>/dev/null; then \
	    $(PIP) install --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[libvirt]' \
	        && touch $@ || echo "Tests of the libvirt driver will be skipped, because pip cannot build libvirt-python"; \
	fi

# The libraries for the bill of materials, which only a release needs.
$(CYCLONEDX): $(INSTALLED)
	@$(PIP) install --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[release]'
	@touch $@

# The libraries that only `make mutants` needs.
$(COSMIC_RAY): $(INSTALLED)
	@$(PIP) install --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[mutants]'
	@touch $@

constraints:
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade setuptools
	$(PIP) install --no-build-isolation --editable '.[$(EXTRAS),libvirt,mutants,release]'
	sed -i '/^[^#]/d' $(CONSTRAINTS)
	$(BIN)/pip freeze --all --exclude-editable --exclude pip >> $(CONSTRAINTS)
	touch $(RUNTIME) $(INSTALLED)

clean:
	rm -rf $(VENV) build dist doc/_build *.egg-info .tox .coverage .coverage.* htmlcov \
	    .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
