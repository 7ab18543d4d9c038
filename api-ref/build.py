"""Makes the reference page, `index.html`, of the document `openapi.yaml`.

    python api-ref/build.py

The page needs nothing but itself: no scripts, no other files. `reference.html` is its template.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import jinja2
import yaml
from markdown_it import MarkdownIt
from markupsafe import Markup

FOLDER: Final = Path(__file__).parent
PAGE: Final = FOLDER / "index.html"
_MARKDOWN: Final = MarkdownIt()

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One property of a body: how deep it stands, what it is called, and what is said about it."""

    depth: int
    name: str
    required: bool
    kind: str
    limits: str
    description: str


class Reference:
    """The document, with what the template asks of it."""

    def __init__(self, document: Node) -> None:
        self.document = document

    def operations(self, tag: str) -> Iterator[dict[str, Any]]:
        """The operations of one group, in the order of the document."""
        for path, methods in self.document["paths"].items():
            for method, operation in methods.items():
                if tag in operation["tags"]:
                    yield {**operation, "path": path, "method": method.upper()}

    def parameters(self, operation: Node, place: str) -> list[Node]:
        """The parameters of an operation in one place: path, query or header."""
        found = [self.resolve(each) for each in operation["parameters"]]
        return [each for each in found if each["in"] == place]

    def target(self, operation: Node) -> str:
        """The path with the examples of the query parameters."""
        pairs: list[str] = []
        for each in self.parameters(operation, "query"):
            if "example" not in each:
                continue
            example = each["example"]
            if isinstance(example, dict):  # names of their own
                pairs += [f"{name}={value}" for name, value in example.items()]
            else:
                values = example if isinstance(example, list) else [example]
                pairs += [f"{each['name']}={value}" for value in values]
        return f"{operation['path']}?{'&'.join(pairs)}"

    def responses(self, operation: Node) -> Iterator[dict[str, Any]]:
        """The answers of an operation, successes first."""
        for status, response in operation["responses"].items():
            phrase = HTTPStatus(int(status)).phrase
            yield {**self.resolve(response), "status": int(status), "phrase": phrase}

    def headers(self) -> list[tuple[str, Node]]:
        """All headers that answers have, once each."""
        found: dict[str, Node] = {}
        for methods in self.document["paths"].values():
            for operation in methods.values():
                for response in self.responses(operation):
                    found |= {name: self.resolve(each) for name, each in response["headers"].items()}
        return list(found.items())

    def resolve(self, node: Node) -> dict[str, Any]:
        """The node without references; what stands beside a reference wins."""
        if "$ref" not in node:
            return dict(node)
        target: Any = self.document
        for step in node["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return {**self.resolve(target), **{name: each for name, each in node.items() if name != "$ref"}}

    def body(self, content: Node) -> Node:
        """What is said about a body: its schema and example."""
        media: Node = content["content"]["application/json"]
        return media

    def kind(self, schema: Node) -> str:
        """The type of a value, for people."""
        schema = self.resolve(schema)
        kinds = schema.get("type", "string")
        names = [kinds] if isinstance(kinds, str) else list(kinds)
        if schema.get("format"):
            names[0] = {"uuid": "UUID"}.get(schema["format"], schema["format"])
        if "array" in names and "items" in schema:
            names[names.index("array")] = f"array of {self.kind(schema['items'])}s"
        return " or ".join(names)

    def limits(self, schema: Node) -> str:
        """What restricts a value, for people, in Markdown."""
        schema = self.resolve(schema)
        said = []
        if "const" in schema:
            said.append(f"always `{schema['const']}`")
        if "enum" in schema:
            said.append("one of " + ", ".join(f"`{each}`" for each in schema["enum"]))
        said += _ranges(schema)
        if schema.get("pattern"):
            said.append(f"matches `{schema['pattern']}`")
        if schema.get("uniqueItems"):
            said.append("without repetitions")
        if schema.get("minProperties"):
            said.append("not empty")
        if "default" in schema:
            said.append(f"default `{schema['default']}`")
        return "; ".join(said)

    def rows(self, schema: Node) -> list[Row]:
        """The properties of a body and all below them, top down."""
        return list(self._rows(self.resolve(schema), 0))

    def _rows(self, schema: Node, depth: int) -> Iterator[Row]:
        for name, each in schema.get("properties", {}).items():
            yield from self._row(name, each, name in schema.get("required", ()), depth)
        for pattern, each in schema.get("patternProperties", {}).items():
            yield from self._row(_name_of(pattern), each, False, depth)
        if "items" in schema:
            yield from self._rows(self.resolve(schema["items"]), depth)

    def _row(self, name: str, schema: Node, required: bool, depth: int) -> Iterator[Row]:
        schema = self.resolve(schema)
        description = schema.get("description", "")
        yield Row(depth, name, required, self.kind(schema), self.limits(schema), description)
        yield from self._rows(schema, depth + 1)


_NAMES: Final = {
    "^[A-Z0-9_]+$": "{resource class}",
    "^[A-Z0-9_]+$|^all$|^unknown$": "{consumer type}",
    "^[a-zA-Z0-9_-]{0,64}$": "{suffix}",
    "^.{1,255}$": "{name}",
    "^[A-Za-z][A-Za-z0-9_.-]{0,63}$": "{attribute}",
    "^attribute:[A-Za-z][A-Za-z0-9_.-]{0,63}$": "attribute:{attribute}",
}


def _name_of(pattern: str) -> str:
    """What to call the keys that match a pattern."""
    return _NAMES.get(pattern, "{uuid}")


def _ranges(schema: Node) -> Iterable[str]:
    for least, most, unit in (
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " element(s)"),
    ):
        if least in schema and schema[least] == schema.get(most):
            yield f"exactly {schema[least]}{unit}"
        elif least in schema and most in schema:
            yield f"{schema[least]} to {schema[most]}{unit}"
        elif schema.get(least) == 1 and unit:
            yield "not empty"
        elif least in schema:
            yield f"at least {schema[least]}{unit}"
        elif most in schema:
            yield f"at most {schema[most]}{unit}"


def markdown(text: str) -> Markup:
    """Paragraphs and lists."""
    return Markup(_MARKDOWN.render(text))


def inline(text: str) -> Markup:
    """Words within a line."""
    return Markup(_MARKDOWN.renderInline(text))


def as_json(example: Any) -> str:
    """The example as a client would see it."""
    return json.dumps(example, indent=2, ensure_ascii=False)


def render(document: Node) -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"markdown": markdown, "inline": inline, "json": as_json}
    return environment.get_template("reference.html").render(
        reference=Reference(document), document=document, info=document["info"]
    )


def load() -> Node:
    """The document."""
    document: Node = yaml.safe_load((FOLDER / "openapi.yaml").read_text(encoding="utf-8"))
    return document


if __name__ == "__main__":
    PAGE.write_text(render(load()), encoding="utf-8")
