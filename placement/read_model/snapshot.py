"""The snapshot of the read model, which has all resource providers in the memory of one worker.

A snapshot is plain data in dictionaries, with indexes. :mod:`placement.read_model.feed` fills and updates it,
and :mod:`placement.search` searches it.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy as shallow_copy
from itertools import compress, islice
from operator import attrgetter, lt, ne
from typing import Any, Final

from placement.read_model.index import (
    EMPTY_INDEX,
    NO_ROOTS,
    FamilyIndex,
    FreeIndex,
    FreeIndexes,
    ProviderIndex,
    RootIds,
    Sums,
    SumsByClass,
)
from placement.read_model.layered_dict import as_one_layer, copy_for_changes
from placement.read_model.provider import Attribute, Provider
from placement.read_model.tree_classes import EquivalentHosts, TreeClasses, any_differs
from placement.read_model.tree_table import Spend, TreeTable, TreeTables
from placement.read_model.trees import BoundedCache, FirstAssignments, HostTree, PortionBounds, Where

DISTANCE: Final = "numa_distance."
"""Prefix of attributes that state the distance of a NUMA node to another node. The uuid of the other node's
provider follows the prefix.
"""
Distances = Mapping[tuple[int, int], int]
"""Distances of NUMA nodes in units of the ACPI SLIT, by the ids of two providers in ascending order."""
Range = tuple[float, float] | None
"""The lowest and the highest number of an attribute among providers; None if no provider has a number."""
# above this share of changed trees, sorting all trees is faster than inserting them into sorted columns
_ANEW_SHARE: Final = 0.1
"""Up to this share of changed trees, the indexes of free amounts are updated. Above this share, they are
rebuilt.
"""
# an entry has about 3 KB: the positions of up to 16 candidates, and those of the options. Requests with many
# groups and rules make entries of up to about 20 KB
_MAX_FIRST: Final = 1024
"""Maximum number of lists of first assignments that are kept."""


class ModelSnapshot:
    """All resource providers of the cloud, and the indexes with which searches begin.

    While a long search still reads a snapshot, other requests change a :meth:`copy` of it.

    :param patterns: the pattern of each provider, if it is known. Providers have the same pattern if they
        have the same objects as inventories, traits and aggregates, and if their parents and roots are at the
        same distances in ``providers``. With patterns, the providers must be in ascending order of their ids.
    """

    def __init__(self, providers: Iterable[Provider] = (), patterns: Sequence[int] | None = None) -> None:
        self.providers: MutableMapping[int, Provider] = {}
        self.by_uuid: dict[str, int] = {}
        #: provider ids by name, computed on demand, because few requests name a provider
        self._by_name: dict[str, int] | None = None
        # members are ids, so that replacing a provider does not change this index
        self.trees = FamilyIndex()
        #: the ids of all roots in ascending order; computed on demand
        self._roots: tuple[int, ...] | None = None
        self.by_class: ProviderIndex[str] = ProviderIndex()
        self.by_trait: ProviderIndex[str] = ProviderIndex()
        self.by_aggregate: ProviderIndex[str] = ProviderIndex()
        self.by_attribute: ProviderIndex[str] = ProviderIndex()
        #: ranges by attribute name, computed on demand, because few requests order by an attribute
        self._ranges: dict[str, Range] = {}
        self._ranges_by_root: dict[str, Mapping[int, tuple[float, float]]] = {}
        self._distances: Distances | None = None
        #: number of readers that have pinned this snapshot, which must not change for them
        self.pin_count = 0
        #: pinned snapshots that may use the same base as a :class:`LayeredDict` of this snapshot
        self._beside: list[ModelSnapshot] = []
        #: whether the snapshot from which this copy was made has the same objects as ``by_uuid``,
        #: ``_by_name`` and ``trees``
        self._shares_members = False
        # the classes are shared with copies of this snapshot, so that equal trees in both snapshots belong to
        # one class
        self._kinds = TreeClasses()
        #: shared with copies, because a table is made again for the trees of any snapshot
        self._tables = TreeTables()
        #: by the form of a request and the options at a tree; the search fills this cache. It is shared with
        #: copies, because positions do not depend on the providers of a snapshot
        self.first_assignments: BoundedCache[Hashable, FirstAssignments] = BoundedCache(_MAX_FIRST)
        #: whether this is another snapshot with other usage, of which no later snapshot is made
        self._is_scenario = False
        self._whole: MutableMapping[int, HostTree] = {}
        self._free_indexes = FreeIndexes()
        self._sums = SumsByClass()
        #: computed on demand, and again after changes of more than usage, because only moves need it
        self._equivalent_hosts: EquivalentHosts | None = None
        #: roots of changed trees. New trees are made on demand, so that several changes of one tree need only
        #: one new tree
        self._stale: set[int] = set()
        # the providers are sorted by id, so that the members of trees and the roots are sorted, too
        self._fill_indexes(sorted(providers, key=attrgetter("id")), patterns)

    def _fill_indexes(self, providers: list[Provider], patterns: Sequence[int] | None) -> None:
        """Fill the empty indexes with providers, ascending by id; faster than many calls of :meth:`put`."""
        ids = [each.id for each in providers]
        self.providers.update(zip(ids, providers, strict=True))
        self.by_uuid.update(zip(map(attrgetter("uuid"), providers), ids, strict=True))
        root_ids = list(map(attrgetter("root_id"), providers))
        starts = (
            [0, *compress(range(1, len(ids)), map(ne, root_ids, islice(root_ids, 1, None)))] if ids else []
        )
        families = list(map(slice, starts, [*starts[1:], len(ids)]))
        roots = [root_ids[each] for each in starts]
        # mostly the members of a tree have successive ids, so that each tree is a slice of all providers
        are_slices = all(map(lt, roots, islice(roots, 1, None)))
        if are_slices:
            self.trees.update(zip(roots, map(ids.__getitem__, families), strict=True))
        else:
            self.trees.fill_from(root_ids, ids)
        # an index gets all providers with the same set of names at once, because there are few different sets
        alike: defaultdict[Hashable, list[int]] = defaultdict(list)
        keys: Iterable[Hashable] = patterns or [
            (tuple(each.inventories), each.traits, each.aggregates) for each in providers
        ]
        for key, provider_id in zip(keys, ids, strict=True):
            alike[key].append(provider_id)
        for each_alike in alike.values():
            first = self.providers[each_alike[0]]
            # the ids are a set, because an empty set takes over another set faster than a list
            members = set(each_alike)
            for index, names in (
                (self.by_class, first.inventories),
                (self.by_trait, first.traits),
                (self.by_aggregate, first.aggregates),
            ):
                for name in names:
                    index.add_all(name, members)
        attributed: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for each in compress(providers, map(attrgetter("attributes"), providers)):
            attributed[tuple(each.attributes)].append(each.id)
        for attributes, having in attributed.items():
            for name in attributes:
                self.by_attribute.add_all(name, having)
        self._stale.update(self.trees)
        if patterns is not None and are_slices:
            families_of = [tuple(providers[each]) for each in families]
            keys = [tuple(patterns[each]) for each in families]
            self._replace_trees(
                roots,
                self._kinds.make_trees(list(map(self.providers.__getitem__, roots)), families_of, keys),
            )

    def copy(self) -> "ModelSnapshot":
        """Return a copy for changes; the original must not change afterwards.

        Both snapshots share providers, trees and sets as long as these do not change.
        """
        new = self._copy_usage()
        # the indexes of members are copied before their first change. Classes and tables of trees are only
        # added to, and the other parts are replaced and never changed
        new._shares_members = True
        new._beside = [each for each in (self, *self._beside) if each.pin_count]
        new.by_class = self.by_class.copy()
        new.by_trait = self.by_trait.copy()
        new.by_aggregate = self.by_aggregate.copy()
        new.by_attribute = self.by_attribute.copy()
        new._ranges = self._ranges.copy()
        new._ranges_by_root = self._ranges_by_root.copy()
        return new

    def _copy_usage(self) -> "ModelSnapshot":
        """Return an unpinned copy that shares all parts that do not depend on usage."""
        new = shallow_copy(self)
        new.pin_count = 0
        new.providers, new._whole = copy_for_changes(self.providers), copy_for_changes(self._whole)
        new._free_indexes, new._sums = self._free_indexes.copy(), self._sums.copy()
        new._stale = self._stale.copy()
        return new

    def merge_layers(self) -> None:
        """Use plain dictionaries again, unless a pinned snapshot still needs their unchanged content."""
        if any(each.pin_count for each in self._beside):
            return
        self._beside, self._shares_members = [], False
        self.providers, self._whole = as_one_layer(self.providers), as_one_layer(self._whole)
        self._sums.merge_layers()

    def with_usage(self, used: Mapping[int, Mapping[str, int]]) -> "ModelSnapshot":
        """Return a read-only snapshot in which the providers with these ids have this usage.

        The copy shares all parts that do not depend on usage with this snapshot. Neither snapshot may change
        while the result is in use.
        """
        self.whole_trees()
        # indexes by names are shared, because usage does not change them
        new = self._copy_usage()
        new._is_scenario = True
        for provider_id, amounts in used.items():
            # only this dict gets the new provider, because no index by name depends on usage
            provider = self.providers[provider_id]
            new.providers[provider_id] = provider.with_usage(amounts)
            new._stale.add(provider.root_id)
        return new

    def trees_alone(self, roots: Iterable[int], used: Mapping[int, Mapping[str, int]]) -> "ModelSnapshot":
        """Return a small read-only snapshot of these trees, in which some providers have another usage."""
        trees = self.whole_trees()
        some = {root: trees[root] for root in roots}
        new = ModelSnapshot(
            each.with_usage(used[each.id]) if each.id in used else each
            for tree in some.values()
            for each in tree.members
        )
        # usage changes neither structures nor classes, so that the new trees have those of the present ones
        new._kinds, new._whole = self._kinds, some
        return new

    def __len__(self) -> int:
        return len(self.providers)

    def __iter__(self) -> Iterator[Provider]:
        return iter(self.providers.values())

    def get(self, uuid: str) -> Provider | None:
        """Return the provider with this uuid; None if no provider has it."""
        provider_id = self.by_uuid.get(uuid)
        return None if provider_id is None else self.providers[provider_id]

    @property
    def by_name(self) -> Mapping[str, int]:
        """The ids of all providers by name."""
        found = self._by_name
        if found is None:
            ids = self.providers.keys()
            found = dict(zip(map(attrgetter("name"), self.providers.values()), ids, strict=True))
            self._by_name = found
        return found

    def roots(self) -> tuple[int, ...]:
        """Return the ids of all roots, in ascending order."""
        # the list is cached until a root is added or removed, because most changes concern usage
        if self._roots is None:
            self._roots = tuple(sorted(self.trees))
        return self._roots

    def whole_trees(self) -> Mapping[int, HostTree]:
        """Return every tree by the id of its root; a tree is the same object until it changes."""
        if self._stale:
            present = sorted([root for root in self._stale if root in self.trees])
            before = list(map(self._whole.get, present))
            roots = list(map(self.providers.__getitem__, present))
            members = [tuple([self.providers[each] for each in self.trees[root]]) for root in present]
            self._replace_trees(present, self._kinds.renew_trees(before, roots, members))
        return self._whole

    def _replace_trees(self, present: Sequence[int], made: Sequence[HostTree]) -> None:
        """Replace the changed trees, and remove those that no longer exist.

        :param present: the roots of the changed trees that exist.
        :param made: the new trees.
        """
        anew = len(self._stale) > len(self._whole) * _ANEW_SHARE
        # most clouds have no movable windows, and then the trees are not compared
        if self._equivalent_hosts is not None and (
            len(present) < len(self._stale) or any_differs(map(self._whole.get, present), made)
        ):
            self._equivalent_hosts = None
        # indexes are updated first, because their update needs the old trees
        if not anew:
            new = dict(zip(present, made, strict=True))
            for root in self._stale:
                self._free_indexes.replace(root, self._whole.get(root), new.get(root))
        for root in self._stale.difference(present):
            self._whole.pop(root, None)
        self._whole.update(zip(present, made, strict=True))
        self._sums.replace(self._stale, self._whole)
        # the trees of a scenario are temporary, and replace no trees of which tables are kept
        if not self._is_scenario:
            self._tables.note_replaced(len(self._stale), len(self._whole))
        if anew:
            self._free_indexes.drop_all()
        self._stale.clear()

    def tree_table(self, where: Where, spend: Spend) -> TreeTable:
        """Return the table of all trees for some resource classes; ``spend`` counts the steps of the work."""
        return self._tables.table_of(where, self.whole_trees().values(), spend)

    def lineage_of(self, provider: Provider) -> Iterator[Provider]:
        """Yield a provider, then its parent and its further ancestors up to the root."""
        yield provider
        while provider.parent_id is not None:
            provider = self.providers[provider.parent_id]
            yield provider

    def free_index(self, name: str) -> FreeIndex:
        """Return the index of trees by free amounts of a resource class."""
        trees = self.whole_trees()
        # an index of an unknown class is not kept, because clients may ask for any name
        return self._free_indexes.index_of(name, trees) if name in self.by_class else EMPTY_INDEX

    def equivalent_hosts(self) -> EquivalentHosts:
        """Return the index of hosts by equivalence."""
        trees = self.whole_trees()
        if self._equivalent_hosts is None:
            self._equivalent_hosts = EquivalentHosts(trees)
        return self._equivalent_hosts

    def portion_bounds(self, name: str) -> PortionBounds | None:
        """Return bounds of a resource class for all its providers; None for an unknown class."""
        self.whole_trees()
        return self._kinds.bounds.get(name)

    def sums_of(self, name: str) -> Sums:
        """Return the used amount and the capacity of a resource class by tree; keys are the roots."""
        trees = self.whole_trees()
        # sums of an unknown class are not cached, because clients may ask for any name
        return self._sums.sums_of(name, trees) if name in self.by_class else {}

    def roots_having(self, index: ProviderIndex[str], name: str) -> RootIds:
        """Return the roots of all trees with a provider that ``index`` lists under this name.

        :param index: :attr:`by_class`, :attr:`by_trait`, :attr:`by_aggregate` or :attr:`by_attribute`.
        """
        roots = index.roots.get(name)
        if roots is None:
            if name not in index:
                return NO_ROOTS  # the result is not cached, because clients may ask for any name
            members = index[name]
            found = {self.providers[provider_id].root_id for provider_id in members}
            roots = index.roots[name] = RootIds(tuple(sorted(found)), found == members)
        return roots

    def attribute_range(self, name: str) -> Range:
        """Return the lowest and the highest number of an attribute; None if no provider has one."""
        if name not in self._ranges:
            if name not in self.by_attribute:
                return None  # the result is not cached, because clients may ask for any name
            values = [self.providers[each].attributes[name] for each in self.by_attribute[name]]
            numbers = [value for value in values if isinstance(value, float)]
            self._ranges[name] = (min(numbers), max(numbers)) if numbers else None
        return self._ranges[name]

    def attribute_ranges(self, name: str) -> Mapping[int, tuple[float, float]]:
        """Return the lowest and the highest number of an attribute by tree; keys are the roots."""
        found = self._ranges_by_root.get(name)
        if found is None:
            ranges: dict[int, tuple[float, float]] = {}
            for each in self.by_attribute.get(name, ()):
                provider = self.providers[each]
                value = provider.attributes[name]
                if isinstance(value, float):
                    least, most = ranges.get(provider.root_id, (value, value))
                    ranges[provider.root_id] = min(value, least), max(value, most)
            found = ranges
            # ranges of an unknown name are not cached, because clients may ask for any name
            if name in self.by_attribute:
                self._ranges_by_root[name] = found
        return found

    def zone_distances(self) -> Distances:
        """Return the distances between NUMA nodes of a host, by the ids of two providers in ascending order.

        Distances are in units of the ACPI SLIT, where 10 is the distance within a node. If the distances of
        the two directions differ, the larger one counts. Unknown distances are missing.
        """
        if self._distances is None:
            found: dict[tuple[int, int], int] = {}
            for name in self.by_attribute:
                other = self.by_uuid.get(name.removeprefix(DISTANCE)) if name.startswith(DISTANCE) else None
                if other is None:
                    continue
                for one in self.by_attribute[name]:
                    # only nodes of this host count: an attribute may name a node of another host, by mistake
                    # or after a move
                    value = self.providers[one].attributes[name]
                    if isinstance(value, float) and self._are_together(one, other):
                        pair = (one, other) if one < other else (other, one)
                        found[pair] = max(round(value), found.get(pair, 0))
            self._distances = found
        return self._distances

    def _are_together(self, one: int, other: int) -> bool:
        return one != other and self.providers[one].root_id == self.providers[other].root_id

    def put(self, provider: Provider) -> None:
        """Add a provider, or replace the provider with the same id."""
        old = self.providers.get(provider.id)
        # attributes are compared by identity, because unchanged attributes are mostly one object
        if old is None:
            self._forget_attributes()
        elif provider.attributes is not old.attributes:
            self._forget_changed(old.attributes, provider.attributes)
        if _differs_in_members(old, provider):
            self._own_members()
        # the old provider is removed before the new provider is added, because the two providers may have the
        # same name or uuid
        if old is not None:
            self._unlink_provider(old, provider)
        if old is None or old.root_id != provider.root_id:
            self._roots = None
        self._link_provider(provider, old)
        self._stale.add(provider.root_id)
        if old is not None and old.root_id != provider.root_id:
            self._stale.add(old.root_id)
            # the provider has moved to another tree, so cached roots are outdated
            for index in (self.by_class, self.by_trait, self.by_aggregate, self.by_attribute):
                index.roots.clear()
            self._forget_attributes()

    def remove(self, provider_id: int) -> None:
        """Remove a provider; a missing provider is not an error."""
        old = self.providers.get(provider_id)
        if old is not None:
            self._own_members()
            self._unlink_provider(old, None)
            self._roots = None
            self._stale.add(old.root_id)
            self._forget_attributes()

    def _own_members(self) -> None:
        """Copy the indexes of uuids, names and members, if an original still has the same objects."""
        if self._shares_members:
            self.by_uuid = self.by_uuid.copy()
            self._by_name = None if self._by_name is None else self._by_name.copy()
            self.trees = self.trees.copy()
            self._shares_members = False

    def _forget_changed(self, before: Mapping[str, Attribute], after: Mapping[str, Attribute]) -> None:
        # only changed names are updated, because agents often write measurements, which no search reads
        for name in {*before, *after}:
            if before.get(name) != after.get(name):
                self._ranges.pop(name, None)
                self._ranges_by_root.pop(name, None)
                if name.startswith(DISTANCE):
                    self._distances = None

    def _forget_attributes(self) -> None:
        self._ranges.clear()
        self._ranges_by_root.clear()
        self._distances = None

    def _link_provider(self, provider: Provider, old: Provider | None) -> None:
        provider_id = provider.id
        self.providers[provider_id] = provider
        # unchanged entries are not written, so that workers continue to share their memory
        if _differs_in_members(old, provider):
            self.by_uuid[provider.uuid] = provider_id
            if self._by_name is not None:
                self._by_name[provider.name] = provider_id
        for index, names, before in self._index_keys(provider, old):
            for name in names:
                if name not in before:
                    index.add(name, provider_id)

    def _unlink_provider(self, old: Provider, new: Provider | None) -> None:
        provider_id = old.id
        # a replaced provider stays in ``providers`` until put() stores the new one
        if new is None:
            del self.providers[provider_id]
        if _differs_in_members(new, old):
            for unique, key in ((self.by_uuid, old.uuid), (self._by_name or {}, old.name)):
                # the entry is checked, because two providers may have swapped their names since the last
                # update
                if unique.get(key) == provider_id:
                    del unique[key]
        for index, names, after in self._index_keys(old, new):
            for name in names:
                if name not in after:
                    index.discard(name, provider_id)

    def _index_keys(
        self, provider: Provider, other: Provider | None
    ) -> Iterator[tuple[ProviderIndex[Any] | FamilyIndex, Iterable[Any], Iterable[Any]]]:
        """Yield each index, with its keys for ``provider`` and its keys for ``other``."""
        yield self.trees, (provider.root_id,), (other.root_id,) if other else ()
        yield self.by_class, provider.inventories, other.inventories if other else ()
        yield self.by_trait, provider.traits, other.traits if other else ()
        yield self.by_aggregate, provider.aggregates, other.aggregates if other else ()
        yield self.by_attribute, provider.attributes, other.attributes if other else ()


def _differs_in_members(one: Provider | None, other: Provider) -> bool:
    """Return whether the indexes of uuids, names and members have different entries for the providers."""
    return one is None or (one.uuid, one.name, one.root_id) != (other.uuid, other.name, other.root_id)
