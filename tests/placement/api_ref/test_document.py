"""Tests that the API reference lists exactly the operations, versions, policies and error codes of this
service.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from jsonschema_rs import Draft202012Validator, meta

from placement import exceptions, microversion, policies
from placement.api.app import create_app
from placement.db import migration
from placement_extras.flavors.flavor import INVALID_FLAVOR
from tests.placement.api_ref import document
from tests.placement.api_ref.document import Operation, at, operations, resolve
from tests.placement.running import Admin, application

EVERY_VERSION = [microversion.text((1, minor)) for minor in range(microversion.MAX[1] + 1)]
ONLY_TELLING = {
    "explainAllocationCandidates",
    "findWindows",
    "showCapacity",
}  # they read a body and change nothing
UUID = "542df8ed-9be2-49b9-b4db-6d3183ff8ec8"


def test_the_reference_is_an_openapi_3_1_document():
    assert document.load()["openapi"].startswith("3.1.")
    schemathesis.openapi.from_dict(document.load()).validate()


def test_an_invalid_document_is_detected():
    broken = {**document.load(), "paths": {"/": {"get": {"responses": []}}}}
    with pytest.raises(Exception, match='is not of type "object"'):
        schemathesis.openapi.from_dict(broken).validate()


def nodes(node: Any = None) -> Iterator[dict[str, Any]]:
    """Yield every object in the document."""
    node = document.load() if node is None else node
    if isinstance(node, dict):
        yield node
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from nodes(each) if isinstance(each, dict | list) and each else ()


def test_every_reference_has_a_target_and_every_component_is_used():
    references = {node["$ref"] for node in nodes() if isinstance(node.get("$ref"), str)}
    for reference in references:
        at(reference)
    components = document.load()["components"]
    there = {
        f"#/components/{kind}/{name}"
        for kind in ("parameters", "headers", "responses", "schemas")
        for name in components[kind]
    }
    assert references == there


def test_every_schema_is_a_json_schema():
    schemas = [node["schema"] for node in nodes() if isinstance(node.get("schema"), dict)]
    for schema in [*schemas, *document.load()["components"]["schemas"].values()]:
        meta.validate(schema)


def with_components(schema: dict[str, Any]) -> dict[str, Any]:
    """Build a standalone document from the schema."""
    return {**schema, "components": document.load()["components"]}


def test_every_example_is_valid():
    counted = 0
    for node in nodes():
        if "schema" in node and "example" in node:
            validator = Draft202012Validator(with_components(node["schema"]), validate_formats=True)
            assert [str(error) for error in validator.iter_errors(node["example"])] == []
            counted += 1
        for example in node.get("examples", ()) if "type" in node else ():
            Draft202012Validator(with_components(node), validate_formats=True).validate(example)
            counted += 1
    assert counted > 50


def test_the_operations_are_the_routes_of_the_service():
    routes = {
        (method, re.sub(r"<(\w+)>", r"{\1}", rule.rule))
        for rule in create_app().url_map.iter_rules()
        for method in rule.methods or ()
    }
    assert {(each.method, each.path) for each in operations()} == routes


def test_every_operation_has_an_id_a_group_and_the_parameters_of_its_path():
    ids = [each.id for each in operations()]
    assert len(set(ids)) == len(ids)
    groups = [tag["name"] for tag in document.load()["tags"]]
    for each in operations():
        (group,) = each.description["tags"]
        assert group in groups
        in_path = {parameter["name"] for parameter in each.parameters if parameter["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", each.path))
        assert each.parameters[0]["name"] == "OpenStack-API-Version"


def test_every_operation_names_the_policy_that_guards_it():
    guarded = {
        (operation["method"], operation["path"]): rule.name
        # the first rule of an operation guards it, and further ones guard some of its bodies
        for rule in reversed(policies.list_rules())
        for operation in getattr(rule, "operations", ())
    }
    named = {(each.method, each.path): each.description.get("x-policy") for each in operations()}
    for operation_id in ("getVersions", "getExtensions"):
        document_of_versions = document.by_id(operation_id)
        assert named.pop(("GET", document_of_versions.path)) is None
        assert document_of_versions.description["security"] == []
    assert named == guarded


def test_the_error_codes_are_those_of_the_service():
    constants = {
        value
        for name, value in vars(exceptions).items()
        if name.isupper() and isinstance(value, str) and value.startswith("placement.")
    }
    assert {each["const"] for each in at("#/components/schemas/ErrorCode")["oneOf"]} == constants | {
        INVALID_FLAVOR
    }


def test_the_reference_has_every_microversion():
    info = document.load()["info"]
    assert list(info["x-microversions"]) == EVERY_VERSION
    assert info["version"] == EVERY_VERSION[-1]
    pattern = document.resolve({"$ref": "#/components/parameters/Version"})["schema"]["pattern"]
    for version in EVERY_VERSION:
        assert re.search(pattern, f"placement {version}")
    assert not re.search(pattern, f"placement 1.{microversion.MAX[1] + 1}")


def changes(operation: Operation) -> list[str]:
    """Return the microversions in the section "Microversions" of an operation."""
    _, _, told = operation.description["description"].partition("**Microversions**")
    return [version for line in re.findall(r"(?m)^- ([\d., ]+):", told) for version in line.split(", ")]


@pytest.mark.parametrize("operation", list(operations()), ids=lambda each: each.id)
def test_the_versions_of_an_operation_exist_and_are_in_order(operation):
    told = changes(operation)
    assert told == sorted(told, key=EVERY_VERSION.index)
    since = operation.description["x-since"]
    assert all(EVERY_VERSION.index(version) >= EVERY_VERSION.index(since) for version in told)
    shows = any("Last-Modified" in answer["headers"] for answer in operation.answers().values())
    if shows and operation.id not in ("createResourceProvider",):
        assert "1.15" in told


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('reference')}/placement.sqlite"
    migration.upgrade_schema(url)
    return Admin(application(url, console={"enabled": True}))


@pytest.mark.parametrize("operation", list(operations()), ids=lambda each: each.id)
def test_an_operation_exists_since_the_version_that_it_names(service, operation):
    since = EVERY_VERSION.index(operation.description["x-since"])
    for number, version in enumerate(EVERY_VERSION):
        answer = service(
            operation.method,
            operation.path_example(),
            headers={"OpenStack-API-Version": f"placement {version}"},
            query_string=[("name", "x")] if operation.path == "/resource_providers" else None,
        )
        missing = answer.status_code == 405 or (
            answer.status_code == 404
            and answer.json["errors"][0]["detail"] == "The resource could not be found."
        )
        assert missing is (number < since), f"{version}: {answer.text}"
        assert str(answer.status_code) in operation.answers()


@pytest.mark.parametrize("operation", list(operations()), ids=lambda each: each.id)
def test_operations_of_a_kind_have_the_same_responses(operation):
    statuses = set(operation.description["responses"])
    expected = {"400", "406"}
    if operation.description.get("security") != []:
        expected |= {"401", "403", "503"}
    if operation.description["x-since"] != "1.0" or "{uuid}" in operation.path:
        expected.add("404")
    if "requestBody" in operation.description:
        expected |= {"413", "415"}
        if operation.id not in ONLY_TELLING:
            expected.add("409")
    assert expected <= statuses
    assert "500" not in statuses
    for status, answer in operation.answers().items():
        if int(status) >= 400:
            schema = answer["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Errors"}
        elif status == "204":
            assert "content" not in answer
        assert all("schema" in resolve(header) for header in answer["headers"].values())
