"""The names that operators depend on, as ``stable_names.yaml`` records them.

Options, commands, metrics, columns of the core's tables, and operations and fields of the API keep their
names. A name leaves the record only after a release that calls it deprecated.
``python -m tests.stability`` adds new names to the record, and removes none.
"""

import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import Any, Final

import yaml

from placement.db import tables
from tests.doc import extensions

ROOT: Final = Path(__file__).parents[1]
RECORD: Final = Path(__file__).with_name("stable_names.yaml")
_PACKAGES: Final = ("placement", "placement_extras", "compute_agent")
_METHODS: Final = frozenset({"get", "put", "post", "patch", "delete"})

(PLACEMENT,) = entry_points(group="oslo.config.opts", name="placement.conf")
(AGENT,) = entry_points(group="oslo.config.opts", name="compute_agent.conf")

StableNames = dict[str, list[str]]
"""Names by their kind."""


def current_names() -> StableNames:
    """Return the names that the sources have now."""
    reference = yaml.safe_load((ROOT / "api-ref/openapi.yaml").read_text(encoding="utf-8"))
    kinds = {
        "options": chain(
            _option_names("placement", PLACEMENT.load()()), _option_names("compute-agent", AGENT.load()())
        ),
        "commands": _command_names(),
        "metrics": (each.name for name in _PACKAGES for each in extensions.sources.metrics(ROOT / name)),
        "columns": (str(column) for table in tables.metadata.sorted_tables for column in table.columns),
        "operations": _operation_names(reference),
        "fields": _field_names(reference),
    }
    return {kind: sorted(set(names)) for kind, names in kinds.items()}


def recorded_names() -> StableNames:
    """Return the names of the record."""
    record: StableNames = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    return record


def _option_names(program: str, groups: Iterable[tuple[Any, Iterable[Any]]]) -> Iterator[str]:
    """Yield names such as ``compute-agent [qos] interval``, former names of options included."""
    for group, options in groups:
        section = getattr(group, "name", group) or "DEFAULT"
        for option in options:
            yield f"{program} [{section}] {option.dest}"
            for old in option.deprecated_opts:
                yield f"{program} [{old.group or section}] {old.name or option.dest}"


def _command_names() -> Iterator[str]:
    for program in ("compute-agent", "placement-manage", "placement-shadow"):
        for words, parser in extensions.commands.parsers(program).items():
            command = f"{program} {words}".strip()
            yield command
            for action in extensions.commands.own_options(parser):
                yield from (f"{command} {name}" for name in action.option_strings if name.startswith("--"))


def _operation_names(reference: dict[str, Any]) -> Iterator[str]:
    """Yield operations such as ``GET /traits``, and their parameters."""
    shared = reference["components"]["parameters"]
    for path, operations in reference["paths"].items():
        for method in _METHODS & operations.keys():
            operation = f"{method.upper()} {path}"
            yield operation
            for parameter in operations[method].get("parameters", ()):
                known = shared[parameter["$ref"].rpartition("/")[2]] if "$ref" in parameter else parameter
                yield f"{operation} {known['in']} {known['name']}"


def _field_names(reference: dict[str, Any]) -> Iterator[str]:
    """Yield the fields of the shared schemas, with the name of the schema."""
    for name, schema in reference["components"]["schemas"].items():
        yield from (f"{name}.{field}" for field in _properties(schema))


def _properties(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "properties":
                yield from value
            yield from _properties(value)
    elif isinstance(schema, list):
        for each in schema:
            yield from _properties(each)


def main() -> int:
    """Add the names of the sources to the record."""
    names = current_names()
    before = recorded_names() if RECORD.exists() else {}
    merged = {kind: sorted({*names[kind], *before.get(kind, ())}) for kind in names}
    head = "# Names that operators depend on: python -m tests.stability adds new ones.\n"
    RECORD.write_text(head + yaml.safe_dump(merged, sort_keys=False), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
