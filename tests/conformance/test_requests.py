"""Every request of OpenStack Placement's own functional tests gets the expected answer.

Each file of requests starts with a service and a world of its own, and its order matters. If only a later
request is selected, the earlier ones of its file run first.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from tests.conformance import source
from tests.conformance.fixtures import FIXTURES
from tests.conformance.runner import Runner
from tests.databases import DatabaseServer


def _load() -> Mapping[str, dict[str, Any]]:
    try:
        return source.load()
    except source.SourceMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error), allow_module_level=True)


FILES: Final = _load()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        cases = [
            pytest.param(file, number, id=f"{file}: {test['name']}", marks=pytest.mark.xdist_group(file))
            for file, content in FILES.items()
            for number, test in enumerate(content["tests"])
        ]
        metafunc.parametrize(("file", "number"), cases)


@pytest.fixture(scope="session")
def runner(
    database_server: DatabaseServer, database_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    folder = tmp_path_factory.mktemp("conformance")
    with Runner(FILES, database_server, database_template, folder) as runner:
        yield runner


def test_request(
    runner: Runner, file: str, number: int, database_server: DatabaseServer, record_property: Any
) -> None:
    record_property("conformance", database_server.kind)
    failure = runner.run(file, number)
    if failure:
        pytest.fail(failure, pytrace=False)


def test_every_fixture_is_used() -> None:
    assert {fixture for content in FILES.values() for fixture in content["fixtures"]} == set(FIXTURES)
