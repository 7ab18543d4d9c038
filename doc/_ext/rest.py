"""The reference of the REST API, with a section for each operation, from its description in OpenAPI."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from markdown_table import cell


def _load(folder: Path) -> ModuleType:
    """Return the module that reads the description. It is in the folder of the description, in no package."""
    spec = importlib.util.spec_from_file_location("api_ref_build", folder / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(folder: Path) -> str:
    """Return the reference of the REST API, as markdown."""
    build = _load(folder)
    document = build.load()
    reference = build.Reference(document)
    lines = [_anchored(document["info"]["description"])]
    for tag in document["tags"]:
        lines += [f"\n## {tag['name']}\n", f"{tag['description']}\n"]
        for operation in reference.operations(tag["name"]):
            lines += _operation(reference, operation)
    lines += _errors(reference, document)
    lines += ["\n## Microversions\n", "| version | what is new |", "| --- | --- |"]
    lines += [
        f"| {version} | {cell(text)} |" for version, text in document["info"]["x-microversions"].items()
    ]
    return "\n".join(lines) + "\n"


def _operation(reference: Any, operation: dict[str, Any]) -> Iterator[str]:
    yield f"\n(rest-{operation['operationId'].lower()})="
    yield f"### {operation['summary']}\n"
    yield f"`{operation['method']} {operation['path']}`\n"
    yield _anchored(operation["description"])
    policy = f"policy `{operation['x-policy']}`" if "x-policy" in operation else "needs no token"
    yield f"Since {operation['x-since']}, {policy}.\n"
    for place in ("path", "query"):
        parameters = reference.parameters(operation, place)
        if parameters:
            yield f"| in the {place} | | |\n| --- | --- | --- |"
            for each in parameters:
                schema = each.get("schema", {})
                facts = ", ".join(filter(None, (reference.kind(schema), reference.limits(schema))))
                yield f"| `{each['name']}` | {cell(facts)} | {cell(each['description'])} |"
            yield ""
    if "requestBody" in operation:
        yield from _body(reference, "Body of the request", reference.body(operation["requestBody"]))
    yield "| answer | |\n| --- | --- |"
    for response in reference.responses(operation):
        yield f"| {response['status']} {response['phrase']} | {cell(response['description'])} |"
    yield ""
    for response in reference.responses(operation):
        if response["status"] < 400 and "content" in response:
            yield from _body(reference, f"Body of the answer {response['status']}", reference.body(response))


def _body(reference: Any, title: str, body: dict[str, Any]) -> Iterator[str]:
    yield f"| {title} | | |\n| --- | --- | --- |"
    for row in reference.rows(body["schema"]):
        name = "&nbsp;&nbsp;" * 2 * row.depth + f"`{row.name}`" + (" (required)" if row.required else "")
        facts = "; ".join(filter(None, (row.kind, row.limits)))
        yield f"| {name} | {cell(facts)} | {cell(row.description)} |"
    yield ""
    if "example" in body:
        yield f"```json\n{json.dumps(body['example'], indent=2, ensure_ascii=False)}\n```\n"


def _errors(reference: Any, document: dict[str, Any]) -> Iterator[str]:
    schemas = document["components"]["schemas"]
    yield "\n(schema-errors)=\n## Errors\n"
    yield f"{schemas['Errors']['description']}\n"
    yield f"```json\n{json.dumps(schemas['Errors']['examples'][0], indent=2)}\n```\n"
    yield "| code | |\n| --- | --- |"
    for each in schemas["ErrorCode"]["oneOf"]:
        yield f"| `{each['const']}` | {cell(each['description'])} |"


def _anchored(text: str) -> str:
    """Return a description with the links changed that have another anchor on the page of the site."""
    return text.replace("](#schema-Errors)", "](#schema-errors)") + "\n"
