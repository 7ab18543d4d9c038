"""The table of the agent's threads, from the instances of ``ThreadSpec`` in its modules."""

import importlib
import pkgutil
from typing import Final

import compute_agent
from compute_agent.threads import ONCE, ThreadSpec

_HEAD: Final = (
    "| thread | interval | what it does | locks | may call | module |\n| --- | --- | --- | --- | --- | --- |"
)


def roles() -> list[tuple[str, ThreadSpec]]:
    """Return the threads with the modules that define them: permanent threads, then threads that run once.

    Both groups are sorted by name.

    :raises ImportError: a module needs a package that is not installed.
    """
    found = [
        (name, role)
        for name in _modules()
        for role in vars(importlib.import_module(name)).values()
        if isinstance(role, ThreadSpec)
    ]
    return sorted(found, key=lambda one: (one[1].interval == ONCE, one[1].name))


def page() -> str:
    """Return the table as markdown."""
    return "\n".join([_HEAD, *(_row(module, role) for module, role in roles())])


def _modules() -> list[str]:
    return [
        module.name for module in pkgutil.walk_packages(compute_agent.__path__, f"{compute_agent.__name__}.")
    ]


def _row(module: str, role: ThreadSpec) -> str:
    interval = f"{role.interval:g} s" if isinstance(role.interval, float) else role.interval
    cells = f"`{role.name}`", interval, role.duty, role.locks, role.calls, f"`{module}`"
    return f"| {' | '.join(cells).replace('``', '`')} |"
