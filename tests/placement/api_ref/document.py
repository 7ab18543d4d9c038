"""Reads `api-ref/openapi.yaml`, and gives tests access to its parts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[3] / "api-ref"


@cache
def load() -> dict[str, Any]:
    """Load the document. Callers must not change it."""
    return yaml.safe_load((FOLDER / "openapi.yaml").read_text(encoding="utf-8"))


def resolve(node: Any) -> Any:
    """Follow a reference to its object; return any other node unchanged."""
    while isinstance(node, Mapping) and "$ref" in node:
        node = at(node["$ref"])
    return node


def at(reference: str) -> Any:
    """Return the target of a reference such as `#/components/...`.

    :raises KeyError: the target does not exist
    """
    node: Any = load()
    for step in reference.removeprefix("#/").split("/"):
        node = node[step.replace("~1", "/").replace("~0", "~")]
    return node


@dataclass(frozen=True)
class Operation:
    """One operation of the API: a method of a path."""

    method: str
    path: str
    description: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.description["operationId"])

    @property
    def parameters(self) -> list[Mapping[str, Any]]:
        return [resolve(each) for each in self.description.get("parameters", [])]

    @property
    def body_example(self) -> Any:
        """The example of the request's body; None if the request has no body."""
        body = self.description.get("requestBody")
        return None if body is None else body["content"]["application/json"]["example"]

    def path_example(self) -> str:
        """Fill the path with the examples of its parameters."""
        path = self.path
        for each in self.parameters:
            if each["in"] == "path":
                path = path.replace("{" + each["name"] + "}", each["example"])
        return path

    def query_example(self) -> list[tuple[str, str]]:
        """Build the query string from the examples of its parameters, in style form, exploded."""
        pairs: list[tuple[str, str]] = []
        for each in self.parameters:
            if each["in"] == "query" and "example" in each:
                example = each["example"]
                if isinstance(example, list):
                    pairs += [(each["name"], value) for value in example]
                elif isinstance(example, dict):
                    pairs += example.items()
                else:
                    pairs.append((each["name"], example))
        return pairs

    def answers(self) -> Mapping[str, Mapping[str, Any]]:
        """The documented responses, by status."""
        return {status: resolve(answer) for status, answer in self.description["responses"].items()}


def operations() -> Iterator[Operation]:
    """Return all operations, in the order of the document."""
    for path, methods in load()["paths"].items():
        for method, description in methods.items():
            yield Operation(method.upper(), path, description)


def by_id(operation_id: str) -> Operation:
    """Return the operation with this id."""
    return next(each for each in operations() if each.id == operation_id)
