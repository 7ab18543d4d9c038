"""Comparison of the scenario's steps: content after each on this service and on OpenStack Placement."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from tests.openstack.record import Record

Story = Sequence[tuple[str, Record]]
"""Content after each step."""


def differences(ours: Story, stock: Story) -> list[str]:
    """Return the differences by step: subject and both values."""
    found = []
    for (name, our_record), (their_name, their_record) in zip_longest(ours, stock, fillvalue=("", Record())):
        if name != their_name:
            found.append(f"step {name!r} is {their_name!r}")
        mine, theirs = dict(_flat(asdict(our_record))), dict(_flat(asdict(their_record)))
        found += [
            f"{name}: {path}: {mine.get(path)!r} instead of {theirs.get(path)!r}"
            for path in sorted({*mine, *theirs})
            if mine.get(path) != theirs.get(path)
        ]
    return found


def table(ours: Story, stock: Story) -> str:
    """Format as rows of Markdown."""
    rows = [
        "| step | changed allocations | all else as on OpenStack Placement |",
        "| --- | --- | --- |",
    ]
    before = Record()
    for (name, record), (_, other) in zip(ours, stock, strict=True):
        rows.append(f"| {name} | {record.changes(before)} | {'yes' if record == other else '**no**'} |")
        before = record
    return "\n".join(rows)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested mappings to values by path."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
