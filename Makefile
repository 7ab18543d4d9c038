# make demo         the whole system on this machine, one guest from claim to release (KEEP=1 leaves it running)
# make adopt-demo   a cloud moves from OpenStack Placement to this service, and back (DATABASE=postgresql, mariadb)
# make test-kills   kills a move between the two at many of its statements, on each kind of database
# make test         everything continuous integration runs: lint, types, import directions, site, tests
# make test-long    the same with those that take longest, and all random examples, rounds and kills: 35 minutes
# make coverage     the same tests, and which lines none of them reaches: takes twice as long
# make check        what a developer runs all day: lint, types, import directions, tests that need no server, some of
#                   these with the lowest versions of dependencies
# make mutants      whether the quick tests notice when one token of what decides is another: MUTANTS=200 SEED=1;
#                   FOLDERS='compute_agent/isolation' for some folders
# make test-vm      the tests that need a virtual machine with cache and bandwidth control, which it makes first
# make test-failover  databases that fail over and break under load, 30 times each, with a table: a quarter of an hour
# make test-upgrade upgrades from earlier releases under load, and back, on each database: a table; half an hour
# make test-shadow  requests at random to OpenStack Placement through placement-shadow, an hour's worth: half an hour
# make test-openstack  Nova's life of guests on this service and on OpenStack Placement, their classes on two hosts: 40 minutes
# make test-dependencies  quick tests with the lowest versions and those of OpenStack's series; beside Nova
# make test-packages  builds, installs and removes Debian packages and an image; kolla's templates: ten minutes
# make test-nova    Nova's own functional tests that are about Placement, on both services; what Nova makes of flavors
# make lint         the first three of these
# make doc          builds the site in doc/_build/html; a warning is an error
# make man         writes the pages for man(1) to doc/_build/man
# make doc-links    asks for every link that leaves the site (needs the internet)
# make dist         a wheel and an sdist of the last commit in dist/, to install elsewhere
# make release      a release with changelog, packages and checksums: VERSION=1.2.0
# make deb          Debian packages in dist/
# make image        a container image of the service, by buildah (BUILDER='docker build' for another builder)
# make format       lets ruff put the sources in order
# make samples      writes the sample configurations in etc/ anew, after options changed
# make constraints  resolves the newest versions and writes etc/constraints.txt anew
# make clean        removes the virtual environment and all caches
#
# PYTEST_ARGS adds to the test run: make test PYTEST_ARGS='-k candidates -x'
# RELEASE_ARGS to a release: make release VERSION=1.2.0 RELEASE_ARGS='--key operator@example.org'
# UPGRADE_ARGS to that of upgrades: make test-upgrade UPGRADE_ARGS='sqlite --releases 1'
# FAILOVER_ARGS to that of failures: make test-failover FAILOVER_ARGS='galera --faults 5 --seed 1'

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
# A module stays in one process, so that it starts its servers once; tests/conftest.py says what else does.
# The run ends if a process crashes: with a new process it would wait for ever.
BY_MODULE := --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# Quick tests compute more than they wait: one process more than there are processors.
PARALLEL := --numprocesses $(shell expr $$(nproc) + 1) $(BY_MODULE)
# Tests with servers wait as much as they compute, so there are two processes for each processor.
WAITING := --numprocesses $(shell expr $$(nproc) \* 2) $(BY_MODULE)
# What needs a virtual machine or a cloud, or builds packages, has a target of its own.
HERE := not vm and not openstack and not packages and not nova
QUICK := -m 'not slow and not root and not postgresql and not mysql and not vm' --database sqlite \
    tests/placement tests/placement_extras tests/compute_agent --ignore=tests/placement/api_ref
# Each process that collects the generated requests spends half a minute, so they have a process of their own.
GENERATED := tests/placement/api_ref/test_generated_requests.py
REST := -p no:schemathesis --ignore=$(GENERATED)
# What make check runs of them: those that take less than 0.15 seconds.
BRIEF := $(QUICK) --brief
SDIST := build/sdist
BUILDER := buildah build --format docker --timestamp $$SOURCE_DATE_EPOCH
SITE := doc/_build/html
SPHINX := $(BIN)/sphinx-build -W --keep-going -n -q
# Tests start hundreds of programs, each of which would compile all that it imports where this is set.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo adopt-demo test quick-tests lowest-tests generated-tests compiled-tests test-long test-kills coverage check mutants test-vm test-failover test-upgrade test-shadow test-openstack test-nova \
    test-packages test-dependencies lint format samples doc man doc-links dist deb image release constraints clean packages

demo: $(RUNTIME)
	@$(BIN)/python -m tests.demo

adopt-demo: packages $(INSTALLED)
	@$(BIN)/python -W ignore -m tests.adopt_demo

# Of what is tried at random, or many times over, two fifths, and nothing that takes very long.
test: export PLACEMENT_EXAMPLES_PERCENT ?= 40
test: HERE += and not long

# Packages of Debian and PyPI are installed side by side; then mypy and sphinx use one processor each.
# The site is read anew, because tests search it: a site that was built in parts lacks entries of its index.
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

# Compiles the test modules; otherwise each of the processes that run them compiles them all. Those processes
# report what fails here.
compiled-tests: $(INSTALLED)
	@$(BIN)/python -m pytest -q --collect-only $(REST) > /dev/null || true

quick-tests: $(INSTALLED)
	$(BIN)/python -m pytest -q $(BRIEF) $(PARALLEL) -p no:schemathesis $(PYTEST_ARGS)

# The tests that call libraries, with the lowest versions that setup.cfg allows, which are installed once.
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

# Database servers and the like, which tests use where they find them; only root can install them.
packages:
	@if [ "$$(id -u)" = 0 ] && [ -x tests/install-packages.sh ]; then tests/install-packages.sh; fi

# What runs, and no more, compiled when it is used, which is a quarter of the time: the demo is to be had in a minute.
# Debian keeps the pip of new environments in a package of its own (python3-venv).
$(RUNTIME): setup.cfg pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or newer is needed; name one with make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	    && echo "Installing python3-venv ..." && apt-get -qq update \
	    && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y python3-venv >/dev/null; } \
	    || { echo "$(PYTHON) cannot make virtual environments: install the package python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV) ..."
	@rm -rf *.egg-info  # left by a distribution that was made: it would hide the entry points of what is installed
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --constraint $(CONSTRAINTS) setuptools
	@$(PIP) install --no-compile --constraint $(CONSTRAINTS) --no-build-isolation --editable .
	@touch $@

# What tests, lint and documentation need beside it.
$(INSTALLED): $(RUNTIME)
	@echo "Installing what tests need into $(VENV) ..."
	@$(PIP) install --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $@

# libvirt-python is built, where there are a libvirt to build it against and a compiler.
$(LIBVIRT): $(INSTALLED) | packages
	@if pkg-config --exists libvirt 2>/dev/null; then \
	    $(PIP) install --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[libvirt]' \
	        && touch $@ || echo "Tests of the libvirt driver will be skipped: libvirt-python cannot be built"; \
	fi

# What the bill of materials needs: only a release does.
$(CYCLONEDX): $(INSTALLED)
	@$(PIP) install --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[release]'
	@touch $@

# What mutants need: nothing else does.
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
