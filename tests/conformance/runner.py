"""Runs the requests of each file in order, against a service for this file alone."""

import copy
import unittest
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self
from wsgiref.types import StartResponse, WSGIApplication

from gabbi import handlers, suitemaker

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
