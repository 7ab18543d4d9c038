"""Which root each provider has, decided from the parents alone."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TreeRoots:
    """The roots by provider id, and who has none.

    ``of`` maps a root to None, as the database does. ``orphans`` have (or are
    below) a parent that does not exist; ``loops`` are below themselves, or below such.
    """

    of: Mapping[int, int | None]
    orphans: frozenset[int]
    loops: frozenset[int]


def find_roots(parents: Mapping[int, int | None]) -> TreeRoots:
    """The root of every provider whose chain of parents has an end."""
    roots: dict[int, int] = {}
    orphans: set[int] = set()
    loops: set[int] = set()
    for start in parents:
        chain: dict[int, None] = {}
        provider_id = start
        while True:
            if provider_id in roots:
                roots.update(dict.fromkeys(chain, roots[provider_id]))
            elif provider_id in orphans or provider_id not in parents:
                orphans.update(chain)
            elif provider_id in loops or provider_id in chain:
                loops.update(chain)
            else:
                chain[provider_id] = None
                parent = parents[provider_id]
                if parent is not None:
                    provider_id = parent
                    continue
                roots.update(dict.fromkeys(chain, provider_id))
            break
    of = {provider_id: None if root == provider_id else root for provider_id, root in roots.items()}
    return TreeRoots(of, frozenset(orphans), frozenset(loops))


def parents_first(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows (of ``id`` and ``parent_id``), each after its parent and otherwise in their order.

    Foreign keys want them so. Rows whose parent never comes are left out.
    """
    done: set[int] = set()
    waiting: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        parent = row["parent_id"]
        if parent is not None and parent not in done:
            waiting.setdefault(parent, []).append(row)
            continue
        ready = [row]
        while ready:
            next_row = ready.pop()
            done.add(next_row["id"])
            yield next_row
            ready += reversed(waiting.pop(next_row["id"], []))
