"""A client of commands of `openstack` with prepared answers, and a function that runs a command."""

import io
import json
from types import SimpleNamespace
from typing import Any

from osc_lib.command import command

FIRST = "4e8e5957-649f-477b-9e5b-f1f75b21c03c"
SECOND = "542df8ed-9be2-49b9-b4db-6d3183ff8ec8"
GUEST = "67a82c9a-4a12-4b0a-8b5b-6e5d0b2a9b11"
NODE = "d1ad1c8f-3cd9-4a36-9c8d-1c4a3b3f4e55"
TREES = {FIRST: {FIRST: "web1"}, SECOND: {SECOND: "web2", NODE: "web2_NUMA_0"}}
"""Names of providers by the root of their tree."""


class CommandClient:
    """A client like that of osc-placement with prepared answers. It records the requests."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, Any]] = []

    def request(self, method: str, path: str, **options: Any) -> Any:
        if path == "/resource_providers":
            return self.providers(**options["params"])
        self.asked.append((method, path, options.get("json")))
        text = self.answers.pop(0)
        return SimpleNamespace(content=text.encode(), json=lambda: json.loads(text))

    @staticmethod
    def providers(in_tree: str = "", name: str = "") -> Any:
        """Return the tree of a provider, or the providers with a name. Each host has one NUMA node."""
        found = [
            {"uuid": uuid, "name": called, "root_provider_uuid": root}
            for root, tree in TREES.items()
            for uuid, called in tree.items()
            if in_tree in tree or name == called
        ]
        return SimpleNamespace(content=b"some", json=lambda: {"resource_providers": found})


def run(kind: type[command.Command], client: CommandClient, *arguments: str) -> tuple[Any, str]:
    """Run a command; return its table and its standard error."""
    app = SimpleNamespace(client_manager=SimpleNamespace(placement=client), stderr=io.StringIO())
    made = kind(app, None)
    parsed_args = made.get_parser("command").parse_args([*arguments])
    return made.take_action(parsed_args), app.stderr.getvalue()
