"""Every request of OpenStack Placement's own functional tests gets the expected answer.

Each file of requests starts with a service and a world of its own, and its order matters. If only a later
request is selected, the earlier ones of its file run first.
"""

import copy
import os
import unittest
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self
from wsgiref.types import StartResponse, WSGIApplication

import pytest
from gabbi import handlers, suitemaker

from tests.conformance import source
from tests.conformance.fixtures import FIXTURES, running
from tests.databases import DatabaseServer


class Runner:
    """Keeps only the service of the last file, so the requests of a file should be consecutive."""

    def __init__(
        self, files: Mapping[str, dict[str, Any]], server: DatabaseServer, template: str, folder: Path
    ) -> None:
        """Keep the template and the folder.

        :param template: URL of a migrated, empty database
        :param folder: place for files of the services
        """
        self._files = files
        self._server = server
        self._template = template
        self._folder = folder
        self._file = ""
        self._requests: list[unittest.TestCase] = []
        self._problems: list[str | None] = []
        self._running = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()

    def run(self, file: str, number: int) -> str | None:
        """Send a request after its predecessors in the file, and compare the answer.

        :returns: the difference from the expected answer, None if they agree
        """
        if file != self._file:
            self._file = ""
            self._running.close()
            self._requests = self._running.enter_context(self._service(file))
            self._problems = []
            self._file = file
        # gabbi reports a request as passed when it ran only as the predecessor of another one
        for request in self._requests[len(self._problems) : number + 1]:
            self._problems.append(_run(request))
        return self._problems[number]

    @contextmanager
    def _service(self, file: str) -> Iterator[list[unittest.TestCase]]:
        content = copy.deepcopy(self._files[file])  # gabbi writes into its argument
        (fixture,) = content.pop("fixtures")
        url = self._server.clone(self._template)
        try:
            with running(FIXTURES[fixture], url, self._folder) as application:
                suite = suitemaker.test_suite_from_dict(
                    loader=unittest.TestLoader(),
                    test_base_name=file,
                    suite_dict=content,
                    test_directory="",
                    host="placement.test",
                    port=None,
                    fixture_module=None,
                    intercept=lambda: _strict(application),
                    handlers=[handler() for handler in handlers.RESPONSE_HANDLERS],
                )
                yield list(suite)
        finally:
            self._server.drop_database(url)


def _strict(application: WSGIApplication) -> WSGIApplication:
    """Encodes paths as PEP 3333 wants them (bytes as Latin-1), since gabbi's client decodes them."""

    def call(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        environ["PATH_INFO"] = environ["PATH_INFO"].encode().decode("latin-1")
        return application(environ, start_response)

    return call


def _run(request: unittest.TestCase) -> str | None:
    result = unittest.TestResult()
    request.run(result)
    return "\n".join(text for _, text in result.errors + result.failures + result.skipped) or None


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
