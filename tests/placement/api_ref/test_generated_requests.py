"""Tests that answers to generated requests (by schemathesis) match the API reference.

Each run sends the same few requests to each operation. With `PLACEMENT_COMPUTE_FUZZ_EXAMPLES=1000`, it sends
a thousand new requests.
"""

import copy
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ensure_resource_availability,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
    use_after_free,
)

from placement import microversion
from placement.db import migration
from tests import databases
from tests.placement.api_ref import document
from tests.placement.api_ref.fitting import fit
from tests.placement.api_ref.story import tell_until
from tests.placement.running import Admin, application

load_all_checks()
not_a_server_error = schemathesis.checks.not_a_server_error

EXAMPLES = int(os.environ.get("PLACEMENT_COMPUTE_FUZZ_EXAMPLES", "20"))
TOKEN = {"X-Auth-Token": "admin"}
NEWEST = microversion.text(microversion.MAX)
OLDER = [microversion.text((1, minor)) for minor in range(microversion.MAX[1])]
OF_ANY_VERSION = [not_a_server_error, status_code_conformance, content_type_conformance]
ALL = [
    *OF_ANY_VERSION,
    response_schema_conformance,
    response_headers_conformance,
    negative_data_rejection,
    unsupported_method,
]


class _Service:
    """The service in the process of the tests. It runs only during tests, but the generator of tests needs an
    application earlier.
    """

    app: WSGIApplication

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self.app(environ, start_response)


service = _Service()


def _schema(versions: list[str]) -> Any:
    """Restrict the document to these microversions. For a single one, leave out the header, which the test
    sends itself.
    """
    narrowed = copy.deepcopy(document.load())
    parameter = narrowed["components"]["parameters"]["Version"]
    headers = [f"placement {version}" for version in versions]
    parameter.update(required=True, schema={"type": "string", "enum": headers}, example=headers[0])
    if len(versions) == 1:
        for methods in narrowed["paths"].values():
            for operation in methods.values():
                del operation["parameters"][0]
    schema = schemathesis.openapi.from_dict(narrowed)
    schema.config.generation.with_security_parameters = False
    schema.app = service
    return schema


newest = _schema([NEWEST])
older = _schema(OLDER)
settings = hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize="PLACEMENT_COMPUTE_FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[databases.DatabaseServer, str]]:
    """An SQLite database with the objects of the reference's examples."""
    with databases.create("sqlite") as server:
        url = server.fresh_database()
        migration.upgrade_schema(url)
        tell_until(Admin(application(url)), "reshape")
        yield server, url


@pytest.fixture(autouse=True)
def renew(world: tuple[databases.DatabaseServer, str]) -> Callable[[], None]:
    """Reset the service to this state before each test."""
    server, url = world

    def start() -> None:
        service.app = application(server.clone(url))

    start()
    return start


@newest.parametrize()
@settings
def test_the_answers_of_the_newest_version_are_as_described(case):
    fit(case, Admin(service))
    case.call_and_validate(headers={**TOKEN, "OpenStack-API-Version": f"placement {NEWEST}"}, checks=ALL)


def test_created_objects_can_be_read_changed_and_deleted(renew):
    """Follow links of the document: each operation uses UUIDs and names of its predecessors."""

    class Walk(newest.as_state_machine()):  # type: ignore[misc]  # a class built at run time
        def setup(self) -> None:
            renew()  # generated requests depend on answers, which have to be reproducible
            super().setup()

        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
            return {"headers": {**TOKEN, "OpenStack-API-Version": f"placement {NEWEST}"}}

        def validate_response(self, response: Any, case: schemathesis.Case, **others: Any) -> None:
            case.validate_response(response, checks=[*ALL[:-2], use_after_free, ensure_resource_availability])

    Walk.run(settings=hypothesis.settings(settings, max_examples=EXAMPLES // 2, stateful_step_count=8))


@older.parametrize()
@settings
def test_the_answers_of_all_older_versions_have_a_described_status(case):
    fit(case, Admin(service))
    case.call_and_validate(headers=TOKEN, checks=OF_ANY_VERSION)
