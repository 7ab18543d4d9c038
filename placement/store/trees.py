"""Writes the described state of a tree of providers in one transaction, completely or not at all.

Nouns
    A *description* is the wanted state of one provider: its name, its parent, and optionally its inventories,
    traits, aggregates and attributes. A part of the provider that the description leaves out stays unchanged.
    ``generation`` is the provider generation that the client knows, or None for a new provider. A *level* is
    a set of new providers that can be created together, because all their parents exist.

Invariants
    - A write does not change a provider without a description. A write also does not change a provider that
      already equals its description, whatever generation the client gives. So a client that has not received
      an answer can repeat its request. A new provider has generation 0.
    - Providers can be created, but not moved, renamed or deleted.
    - All described providers belong to one tree.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from placement import exceptions
from placement.db.batch import StatementFamily
from placement.db.database import WriteTransaction
from placement.db.tables import (
    inventories,
    provider_aggregates,
    provider_attributes,
    provider_traits,
    resource_classes,
    resource_providers,
    traits,
)
from placement.exceptions import ConcurrentUpdate, Conflict, InvalidRequest
from placement.read_model.provider import Attribute, Inventory
from placement.read_model.rows import INVENTORY_COLUMNS
from placement.store import inventories as inventory_store
from placement.store import known_names, provider_properties, providers
from placement.store.providers import ProviderRow

_rp = resource_providers.c
# ids begin at 1, so no provider has this id
_NOT_THERE: Final = -1
"""An id that no provider has."""


@dataclass(frozen=True, slots=True)
class ProviderDescription:
    """The wanted state of a provider. A part that is None stays unchanged."""

    uuid: str
    name: str
    parent: str | None
    generation: int | None
    # The value None leaves a part unchanged; an empty collection removes its content
    inventories: Mapping[str, Inventory] | None = None
    traits: Set[str] | None = None
    aggregates: Set[str] | None = None
    attributes: Mapping[str, Attribute] | None = None

    def __str__(self) -> str:
        """Return the name that error messages use for the provider."""
        return f"Resource provider {self.name} ({self.uuid})"


@dataclass(frozen=True, slots=True)
class PresentProvider:
    """The current state of a provider."""

    inventories: dict[str, Inventory] = field(default_factory=dict)
    traits: set[str] = field(default_factory=set)
    aggregates: set[str] = field(default_factory=set)
    attributes: dict[str, Attribute] = field(default_factory=dict)

    def differs_from(self, wanted: ProviderDescription) -> bool:
        """Return whether the current state of the provider differs from the description."""
        return any(
            # the collections are dicts and sets, so their order in the request makes no difference
            part is not None and part != present
            for part, present in (
                (wanted.inventories, self.inventories),
                (wanted.traits, self.traits),
                (wanted.aggregates, self.aggregates),
                (wanted.attributes, self.attributes),
            )
        )


def write(tx: WriteTransaction, wanted: Sequence[ProviderDescription]) -> dict[str, int]:
    """Write the described state of providers of one tree; return their new generations by uuid.

    :raises InvalidRequest: the providers are not one tree, or a resource class or trait does not exist.
    :raises ConcurrentUpdate: a provider has another name, parent or generation than the client knows.
    :raises Conflict: the name of a new provider is taken, or an inventory to be removed is in use.
    """
    # the checks that need neither database nor lock come first
    by_uuid = {each.uuid: each for each in wanted}
    _check_names(wanted)
    levels = list(_tree_levels(by_uuid))
    lookups = {*by_uuid, *(each.parent for each in wanted if each.parent is not None)}
    # parents are looked up, too, because a new provider may have a parent without a description
    tx.lock(lookups)
    # the query is queued after the lock, together with the lookups of ids and rows
    taken = tx.queue(*_NAME_OWNERS.bind_list(each.name for each in wanted))
    ids = _NameIds(tx, wanted)
    rows = providers.find_providers(tx, lookups)
    _check_places(wanted, by_uuid, rows)
    _refuse_taken(wanted, {name: uuid for name, uuid in taken.rows if uuid not in by_uuid})
    known = [each for each in wanted if each.uuid in rows]
    present = _read(tx, [rows[each.uuid] for each in known])
    # a provider that equals its description is not checked, because a repeated request has an old generation
    changing = [each for each in known if present[rows[each.uuid].id].differs_from(each)]
    for each in changing:
        _check_generation(each, rows[each.uuid])
    new = [[each for each in level if each.uuid not in rows] for level in levels]
    # everything is checked before the first write, so that a late error causes no useless writes
    for each in (*changing, *(one for level in new for one in level)):
        ids.check_names(each)
    for level in filter(None, new):
        for each in level:
            if tx.sends_at_once and each.parent is not None:
                providers.insert_below(tx, each.uuid, each.name, each.parent)
            else:
                providers.insert(tx, each.uuid, each.name, None if each.parent is None else rows[each.parent])
        # other databases need the ids of new parents, which are read level by level
        if not tx.sends_at_once:
            rows |= providers.find_providers(tx, [each.uuid for each in level])
    rows |= providers.find_providers(
        tx, [each.uuid for level in new for each in level if each.uuid not in rows]
    )
    _insert(tx, {rows[each.uuid].id: each for level in new for each in level}, ids)
    for each in changing:
        _write_changes(tx, rows[each.uuid], each, present[rows[each.uuid].id], ids)
    # changed providers take another round trip, because the stamps at the commit increase their generations
    generations = {each.uuid: rows[each.uuid].generation for each in wanted}
    return generations | {each.uuid: each.generation + 1 for each in changing if each.generation is not None}


def _check_names(wanted: Sequence[ProviderDescription]) -> None:
    """Raise InvalidRequest for equal uuids or names, also names that MariaDB does not distinguish."""
    names_seen: dict[str, ProviderDescription] = {}
    uuids_seen: set[str] = set()
    for each in wanted:
        if each.uuid in uuids_seen:
            raise InvalidRequest(f"{each} is described twice.")
        uuids_seen.add(each.uuid)
        # MariaDB ignores trailing blanks
        other = names_seen.setdefault(each.name.rstrip(" "), each)
        if other is not each:
            raise InvalidRequest(f"{each}: {other.uuid} has the same name in the request.")


def _tree_levels(wanted: Mapping[str, ProviderDescription]) -> Iterator[list[ProviderDescription]]:
    """Yield providers by level, parents first, or raise InvalidRequest for a loop."""
    below: dict[str | None, list[ProviderDescription]] = {}
    for each in wanted.values():
        # a parent without a description has to exist already, which is checked later
        below.setdefault(each.parent if each.parent in wanted else None, []).append(each)
    level, count = below.get(None, []), 0
    while level:
        count += len(level)
        yield level
        level = [child for each in level for child in below.get(each.uuid, ())]
    # providers in a cycle are below no root, so no level contains them
    if count < len(wanted):
        tops = {each.uuid: each for each in wanted.values()}
        # the error names a provider that is in no level, and so belongs to a cycle or is below one
        for each in below.get(None, ()):
            for one in _described_subtree(each, below):
                del tops[one.uuid]
        raise InvalidRequest(f"{next(iter(tops.values()))}: its ancestors in the request form a loop.")


def _described_subtree(
    top: ProviderDescription, below: Mapping[str | None, Sequence[ProviderDescription]]
) -> Iterator[ProviderDescription]:
    # the code is a loop instead of recursion, because the client determines the depth
    waiting = [top]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += below.get(each.uuid, ())


def _check_places(
    wanted: Sequence[ProviderDescription],
    by_uuid: Mapping[str, ProviderDescription],
    rows: Mapping[str, ProviderRow],
) -> None:
    """Check that existing providers have the described names and parents, and that there is only one tree.

    :raises InvalidRequest: a parent does not exist, or there are several trees.
    :raises ConcurrentUpdate: a provider has another name or parent than the client describes.
    """
    # the key is the id of the root, or its uuid if the root is new
    trees: dict[int | str, ProviderDescription] = {}
    for each in wanted:
        row, parent = rows.get(each.uuid), rows.get(each.parent or "")
        if each.parent is not None and parent is None and each.parent not in by_uuid:
            raise InvalidRequest(f"{each}: its parent {each.parent} does not exist.")
        if row is None:
            if each.generation is not None:
                given = f"generation {each.generation} was given"
                raise ConcurrentUpdate(f"{each} does not exist (any more); {given}.")
        # the error is a conflict and no wrong request, because another client may have moved or renamed the
        # provider
        elif row.name != each.name or row.parent_id != (
            # a parent that does not exist yet has an id without a provider here, so that the parents differ
            None if each.parent is None else _NOT_THERE if parent is None else parent.id
        ):
            raise ConcurrentUpdate(
                f"{each} has another name (its name is {row.name!r}) or another parent than in the request:"
                " this request neither moves nor renames providers."
            )
        if row is not None:
            trees.setdefault(row.tree_root, each)
        elif parent is not None:
            trees.setdefault(parent.tree_root, each)
        # a new provider below a new provider belongs to the tree of its parent
        elif each.parent is None:
            trees.setdefault(each.uuid, each)
    if len(trees) > 1:
        first, second, *_ = trees.values()
        raise InvalidRequest(f"{second} is not in the same tree as {first.name} ({first.uuid}).")


def _refuse_taken(wanted: Sequence[ProviderDescription], taken: Mapping[str, str]) -> None:
    """Raise Conflict if another provider has the name of a new provider."""
    for each in wanted:
        # MariaDB ignores trailing blanks in comparisons, and returns the name as it is stored
        for name in {each.name, each.name.rstrip(" ")} & taken.keys():
            raise Conflict(
                f"{each}: resource provider {taken[name]} already has this name.",
                exceptions.DUPLICATE_NAME,
            )


def _check_generation(wanted: ProviderDescription, row: ProviderRow) -> None:
    """Raise ConcurrentUpdate if the description has another generation than the provider."""
    if wanted.generation != row.generation:
        given = "none" if wanted.generation is None else wanted.generation
        raise ConcurrentUpdate(f"{wanted} is at generation {row.generation}, the request gave {given}.")


class _NameIds:
    """Looks up the ids of the resource classes and traits that descriptions name."""

    def __init__(self, tx: WriteTransaction, wanted: Sequence[ProviderDescription]) -> None:
        classes = {name for each in wanted for name in each.inventories or ()}
        # the queries are queued now, and their answers are read when the ids are needed
        self.classes = known_names.NameLookup(tx, resource_classes, classes)
        self.traits = known_names.NameLookup(
            tx, traits, {name for each in wanted for name in each.traits or ()}
        )

    def check_names(self, wanted: ProviderDescription) -> None:
        """Raise InvalidRequest if a class or trait does not exist, or a capacity is negative."""
        for what, named, known in (
            ("resource class", wanted.inventories or (), self.classes.ids),
            ("trait", wanted.traits or (), self.traits.ids),
        ):
            if unknown := sorted(set(named) - known.keys()):
                raise InvalidRequest(f"{wanted}: No such {what} {', '.join(unknown)}.")
        # values are checked last, because unknown classes are reported before wrong values
        inventory_store.check_capacity(wanted.uuid, wanted.inventories or {}, may_have_none=True)

    def of_classes(self, wanted: Mapping[str, Inventory]) -> dict[int, Inventory]:
        """Replace the names of resource classes by their ids, as keys of inventories."""
        classes = self.classes.ids
        return {classes[name]: values for name, values in wanted.items()}

    def of_traits(self, wanted: Collection[str]) -> set[int]:
        """Return the ids of the traits with these names."""
        known = self.traits.ids
        return {known[name] for name in wanted}


def _insert(tx: WriteTransaction, new: Mapping[int, ProviderDescription], ids: _NameIds) -> None:
    """Write all parts of new providers; the keys are the ids of the providers."""
    # each kind of part takes one statement, for any number of providers
    inventory_store.insert(tx, {each: ids.of_classes(one.inventories or {}) for each, one in new.items()})
    provider_properties.insert_traits(
        tx, {each: ids.of_traits(one.traits or ()) for each, one in new.items()}
    )
    provider_properties.insert_aggregates(tx, {each: one.aggregates or () for each, one in new.items()})
    provider_properties.insert_attributes(tx, {each: one.attributes or {} for each, one in new.items()})


def _write_changes(
    tx: WriteTransaction,
    row: ProviderRow,
    wanted: ProviderDescription,
    present: PresentProvider,
    ids: _NameIds,
) -> None:
    """Write those parts of an existing provider that differ from its description."""
    if wanted.inventories is not None and wanted.inventories != present.inventories:
        differing = {
            name: values
            for name, values in wanted.inventories.items()
            if present.inventories.get(name) != values
        }
        there = {class_id for name, class_id in ids.classes.ids.items() if name in present.inventories}
        inventory_store.put(tx, row.id, ids.of_classes(differing), there)
        going = present.inventories.keys() - wanted.inventories.keys()
        # these are the ids of classes that the description does not name
        gone = known_names.NameLookup(tx, resource_classes, going).ids if going else {}
        # inventories are removed last; a conflict rolls back all changes of the tree
        inventory_store.remove_some(
            tx, row, set(gone.values()), said_before=f"{wanted}: {inventory_store.UPDATE_CONFLICT}"
        )
    if wanted.traits is not None and wanted.traits != present.traits:
        provider_properties.put_traits(tx, row.id, ids.of_traits(wanted.traits))
    if wanted.aggregates is not None and wanted.aggregates != present.aggregates:
        provider_properties.put_aggregates(tx, row.id, wanted.aggregates)
    if wanted.attributes is not None and wanted.attributes != present.attributes:
        provider_properties.put_attributes(tx, row.id, wanted.attributes)
    # the code uses one call for all parts, so that the generation increases by one
    tx.note_changed([row.id], generation=True)


def _read(tx: WriteTransaction, rows: Sequence[ProviderRow]) -> dict[int, PresentProvider]:
    """Return the current state of some locked providers, by provider id."""
    found = {row.id: PresentProvider() for row in rows}
    if not rows:
        return found
    # the parts are read by four statements instead of a join, which would repeat each inventory for each
    # trait
    answers = [tx.queue(*part.bind_list(found)) for part in _PART_LOOKUPS]
    for provider_id, name, *values in answers[0].rows:
        found[provider_id].inventories[name] = Inventory(*values)
    for provider_id, name in answers[1].rows:
        found[provider_id].traits.add(name)
    for provider_id, aggregate in answers[2].rows:
        found[provider_id].aggregates.add(aggregate)
    for provider_id, name, text, number in answers[3].rows:
        found[provider_id].attributes[name] = number if text is None else text
    return found


_PART_LOOKUPS: Final = (
    StatementFamily(
        inventories.c.provider_id,
        sa.select(inventories.c.provider_id, resource_classes.c.name, *INVENTORY_COLUMNS)
        .join(resource_classes, resource_classes.c.id == inventories.c.resource_class_id)
        .where,
    ),
    StatementFamily(
        provider_traits.c.provider_id,
        sa.select(provider_traits.c.provider_id, traits.c.name)
        .join(traits, traits.c.id == provider_traits.c.trait_id)
        .where,
    ),
    StatementFamily(
        provider_aggregates.c.provider_id,
        sa.select(provider_aggregates.c.provider_id, provider_aggregates.c.aggregate).where,
    ),
    StatementFamily(
        provider_attributes.c.provider_id,
        sa.select(
            provider_attributes.c.provider_id,
            provider_attributes.c.name,
            provider_attributes.c.text,
            provider_attributes.c.number,
        ).where,
    ),
)
_NAME_OWNERS: Final = StatementFamily(_rp.name, sa.select(_rp.name, _rp.uuid).where)
