"""Options and fixtures that suites share: the databases that tests run on."""

import configparser
import gc
import logging
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from placement.db import migration
from tests import databases
from tests.brief import LIST, function_of, read_left_out
from tests.databases import DatabaseServer, ServerMissing
from tests.environments import NAME, ROOT
from tests.examples import examples
from tests.open_databases import OpenDatabases

_MARKS = {"postgresql": [pytest.mark.postgresql], "mariadb": [pytest.mark.mysql]}
_QUICK = 2

# No example has a deadline: on a busy machine correct code would miss it.
settings.register_profile(
    "unhurried", deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")

_PAIRS = "tests/placement/differential"


class OneProcessForWhatShares(LoadFileScheduling):
    """Keeps a module in one process, and comparisons of two services in one per kind of database."""

    def _split_scope(self, nodeid: str) -> str:
        module = super()._split_scope(nodeid)
        if not module.startswith(_PAIRS):
            return module
        kind = next((kind for kind in databases.KINDS if f"[{kind}" in nodeid), "any")
        return f"{_PAIRS} on {kind}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneProcessForWhatShares | None:
    return OneProcessForWhatShares(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_configure() -> None:
    """Refuse an environment that was installed before ``setup.cfg`` got an entry point.

    :raises pytest.UsageError: the environment lacks the entry point
    """
    setup = configparser.ConfigParser(delimiters="=")
    setup.read(ROOT / "setup.cfg")
    wanted = {
        (group, *map(str.strip, line.split("=", 1)))
        for group, lines in setup["options.entry_points"].items()
        for line in lines.splitlines()
        if line
    }
    known = {(each.group, each.name, each.value) for each in distribution(NAME).entry_points}
    if missing := sorted(" ".join(each) for each in wanted - known):
        raise pytest.UsageError(
            f"The environment does not know the entry point {missing[0]} of setup.cfg:"
            " run .venv/bin/pip install --no-deps --no-build-isolation --editable ."
        )


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(dict.fromkeys(text.split(",")))
    for kind in kinds:
        if kind not in databases.KINDS:
            raise pytest.UsageError(f"--database: {kind!r} is not one of {', '.join(databases.KINDS)}")
    return kinds


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database",
        type=_kinds,
        metavar=",".join(databases.KINDS),
        help="run database tests on these kinds, which have to be installed (default: on all that are)",
    )
    parser.addoption("--brief", action="store_true", help=f"leave out the tests that {LIST.name} names")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_server" in metafunc.fixturenames:
        kinds = metafunc.config.getoption("--database") or databases.KINDS
        late = _late_kinds(metafunc.definition, kinds)
        metafunc.parametrize(
            "database_server",
            [
                pytest.param(
                    kind, marks=[*_MARKS.get(kind, []), *([pytest.mark.long] if kind in late else [])]
                )
                for kind in kinds
            ],
            indirect=True,
            scope="session",
        )


def _late_kinds(test: pytest.Item, kinds: Iterable[str]) -> set[str]:
    """Return the kinds of database on which a slow test runs only with the long ones.

    A slow test takes seconds on each kind. So it also runs on SQLite and on one of the two servers, which
    its name chooses, with all other tests. A comparison of two services runs on one of the three kinds:
    it compares answers, and the conformance tests expect these answers on each kind.
    """
    servers = sorted(set(kinds) & _MARKS.keys())
    if len(servers) < 2 or test.get_closest_marker("slow") is None:
        return set()
    number = zlib.crc32(test.name.encode())
    if test.nodeid.startswith(_PAIRS) and len(set(kinds)) > len(servers):
        return set(kinds) - {sorted(kinds)[number % len(set(kinds))]}
    return {servers[number % len(servers)]}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze the collected tests, so that the garbage collector does not scan them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort slow modules first, so that quick ones fill the gaps at the end of parallel runs."""
    if config.getoption("--brief"):
        left_out = read_left_out()
        deselected = [each for each in items if function_of(each.nodeid) in left_out]
        config.hook.pytest_deselected(items=deselected)
        items[:] = [each for each in items if function_of(each.nodeid) not in left_out]
    ranks: dict[Path, int] = {}
    tests = Counter(item.path for item in items)
    for item in items:
        ranks[item.path] = min(_rank(item), ranks.get(item.path, _QUICK))
    items.sort(key=lambda item: (ranks[item.path], -tests[item.path], item.path))


def _rank(item: pytest.Item) -> int:
    """Return the rank of a test: first servers, then databases and properties, then all others."""
    if item.get_closest_marker("slow"):
        return 0
    if "database_server" in getattr(item, "fixturenames", ()):
        return 1
    return 1 if hasattr(getattr(item, "obj", None), "hypothesis") else _QUICK


@pytest.fixture(autouse=True)
def no_log_handler_is_left() -> Iterator[None]:
    """Remove handlers set up by a program run in this process: they write to a closed standard error."""
    root = logging.getLogger()
    level = root.level
    yield
    for handler in list(root.handlers):
        if not type(handler).__module__.startswith("_pytest."):
            root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def open_databases() -> Iterator[OpenDatabases]:
    """Databases that this process has open."""
    with OpenDatabases.watched() as watched:
        yield watched


@pytest.fixture(scope="module", autouse=True)
def databases_of_module(open_databases: OpenDatabases) -> Iterator[None]:
    """Close services that fixtures of a module make, and fail if such a fixture leaves a connection open."""
    with open_databases.scope():
        yield


@pytest.fixture(autouse=True)
def databases_of_test(open_databases: OpenDatabases, databases_of_module: None) -> Iterator[None]:
    """Close services that a test makes in this process, and fail if the test leaves a connection open."""
    with open_databases.scope():
        yield


@pytest.fixture(scope="session")
def running_server(open_databases: OpenDatabases) -> Iterator[Callable[[str], DatabaseServer]]:
    """Start the server of a kind for the first module that needs it; it stays for the others."""
    with ExitStack() as running:

        @cache
        def start(kind: str) -> DatabaseServer:
            server = running.enter_context(databases.create(kind))
            server.before_drop = open_databases.close_services
            return server

        yield start


@pytest.fixture(scope="session")
def database_server(
    request: pytest.FixtureRequest, running_server: Callable[[str], DatabaseServer]
) -> DatabaseServer:
    """A running server; the test runs once for each kind of database."""
    try:
        return running_server(request.param)
    except ServerMissing as error:
        if request.config.getoption("--database"):
            pytest.fail(str(error), pytrace=False)  # it was asked for
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def template_of() -> Callable[[DatabaseServer], str]:
    """The URL of a migrated, empty database on a server, one on each."""

    @cache
    def make(server: DatabaseServer) -> str:
        url = server.fresh_database()
        migration.upgrade_schema(url)
        return url

    return make


@pytest.fixture(scope="session")
def database_template(database_server: DatabaseServer, template_of: Callable[[DatabaseServer], str]) -> str:
    """The URL of a migrated, empty database to clone; without connections of its own."""
    return template_of(database_server)


@pytest.fixture
def blank_database_url(database_server: DatabaseServer) -> Iterator[str]:
    """A database of the test's own without any table."""
    url = database_server.fresh_database()
    yield url
    database_server.drop_database(url)


@pytest.fixture
def database_url(database_server: DatabaseServer, database_template: str) -> Iterator[str]:
    """A migrated, empty database of the test's own."""
    url = database_server.clone(database_template)
    yield url
    database_server.drop_database(url)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database of SQLite to copy; without connections of its own."""
    file = tmp_path_factory.mktemp("migrated") / "placement.sqlite"
    migration.upgrade_schema(f"sqlite:///{file}")
    return file


@pytest.fixture
def sqlite_url(tmp_path: Path, migrated_file: Path) -> str:
    """The URL of a migrated, empty database of SQLite in the folder of the test."""
    file = tmp_path / "placement.sqlite"
    shutil.copy(migrated_file, file)
    return f"sqlite:///{file}"
