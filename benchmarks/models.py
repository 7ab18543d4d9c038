"""The read model of a world in this process, without a database."""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, count

from benchmarks.worlds import Tree, WorldProvider
from placement.read_model import provider as model
from placement.read_model.provider import Inventory
from placement.read_model.rows import NOTHING, SharedValues
from placement.read_model.snapshot import ModelSnapshot

Inventories = Mapping[str, Inventory]


def snapshot_of(
    trees: Iterable[Tree], used: Callable[[WorldProvider, Inventories], Mapping[str, int]]
) -> ModelSnapshot:
    """Return the read model of these trees; ``used`` returns the used amounts of a provider."""
    ids: dict[str, int] = {}
    roots: dict[str, int] = {}
    numbers = count(1)
    shared = SharedValues()

    def providers() -> Iterator[model.Provider]:
        for each in (each for tree in trees for each in tree):
            provider_id = ids[each.uuid] = next(numbers)
            roots[each.uuid] = provider_id if each.parent is None else roots[each.parent]
            named = [
                (
                    name,
                    Inventory(
                        int(values["total"]),
                        int(values.get("reserved", 0)),
                        int(values.get("min_unit", 1)),
                        int(values["max_unit"]),
                        int(values.get("step_size", 1)),
                        values.get("allocation_ratio", 1.0),
                    ),
                )
                for name, values in each.inventories.items()
            ]
            inventories = shared.shared_inventories(tuple(chain.from_iterable(named)))
            parent = None if each.parent is None else ids[each.parent]
            yield model.Provider(
                provider_id, each.uuid, each.name, 0, parent, roots[each.uuid], 0.0, inventories,
                used(each, inventories) or NOTHING, shared(frozenset(each.traits)),
                shared(frozenset(each.aggregates)), NOTHING, inventory_times=(0.0,) if inventories else (),
            )  # fmt: skip

    snapshot = ModelSnapshot(providers())
    snapshot.whole_trees()
    gc.collect()
    gc.freeze()  # the service does the same
    return snapshot
