"""Tables of the alert rules in ``etc/prometheus``: when a rule fires, what that means, and what to do."""

from pathlib import Path
from typing import Any

import yaml


def rules(file: Path, group: str) -> list[dict[str, Any]]:
    """Return the alert rules of a group.

    :raises KeyError: there is no such group.
    """
    groups = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    return {each["name"]: each["rules"] for each in groups}[group]


def page(file: Path, group: str) -> str:
    """Return a table of the rules of a group, as markdown."""
    rows = ["| alert | when | means | do |", "| --- | --- | --- | --- |"]
    for rule in rules(file, group):
        said = rule["annotations"]
        condition = rule["expr"].replace("|", "\\|")
        lasting = f" for {rule['for']}" if "for" in rule else ""
        what = f"[{said['description']}]({said['page']})" if "page" in said else said["description"]
        severity = rule["labels"]["severity"]
        rows.append(f"| {rule['alert']} ({severity}) | `{condition}`{lasting} | {said['summary']} | {what} |")
    return "\n".join(rows)
