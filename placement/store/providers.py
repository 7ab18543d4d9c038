"""Creates, changes, deletes and finds resource providers."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from placement import exceptions
from placement.db.batch import PreparedStatement, StatementAnswer, StatementFamily
from placement.db.buckets import bucket_of, present_counter
from placement.db.database import WriteTransaction
from placement.db.tables import (
    IS_TREE_ROOT,
    NO_ID,
    allocations,
    inventories,
    provider_aggregates,
    provider_attributes,
    provider_traits,
    resource_providers,
    root_providers,
)
from placement.exceptions import ConcurrentUpdate, Conflict, InvalidRequest, NotFound
from placement.store import changes, known_names

_rp = resource_providers.c


@dataclass(frozen=True, slots=True)
class ProviderRow:
    """The row of a provider in the database; roots have neither ``parent_id`` nor ``root_id``."""

    id: int
    uuid: str
    name: str
    generation: int
    parent_id: int | None
    root_id: int | None

    @property
    def tree_root(self) -> int:
        """The id of the root of the tree to which the provider belongs."""
        return self.id if self.root_id is None else self.root_id


def find_providers(tx: WriteTransaction, uuids: Collection[str]) -> dict[str, ProviderRow]:
    """Return the database rows of those providers that exist, by uuid."""
    # the function returns early, because not every database accepts an empty IN list
    if not uuids:
        return {}
    found = tx.queue(*_BY_UUID.bind_list(uuids))
    return {row.uuid: row for row in (ProviderRow(*each) for each in found.rows)}


# the columns are in the order of the fields of ProviderRow
_BY_UUID: Final = StatementFamily(
    _rp.uuid, sa.select(_rp.id, _rp.uuid, _rp.name, _rp.generation, _rp.parent_id, _rp.root_id).where
)

_VERSIONS: Final = StatementFamily(_rp.id, sa.select(_rp.id, _rp.described_seq).where)


def queue_versions(tx: WriteTransaction, provider_ids: Iterable[int]) -> Callable[[], dict[int, int]]:
    """Queue a query of the ``described_seq`` of providers; return a function that reads it by provider id.

    A deleted provider is missing.
    """
    answer = tx.queue(*_VERSIONS.bind_list(sorted(provider_ids)))
    return lambda: dict(answer.rows)


def no_provider(uuid: str) -> NotFound:
    """Return the error for a uuid without a provider."""
    return NotFound(f"No resource provider with uuid {uuid} found")


def lock(tx: WriteTransaction, uuid: str) -> ProviderRow:
    """Lock a provider, so that no other transaction writes to it until this transaction ends."""
    # the provider is locked before it is read, which is possible because its uuid determines the bucket
    tx.lock([uuid])
    return read_locked(tx, uuid)


def read_locked(tx: WriteTransaction, uuid: str) -> ProviderRow:
    """Return the row of a provider that the caller has already locked."""
    row = find_providers(tx, [uuid]).get(uuid)
    if row is None:
        raise no_provider(uuid)
    return row


def lock_parts(
    tx: WriteTransaction, uuid: str, column: sa.Column[int], names: sa.Table, wanted: Collection[str]
) -> tuple[ProviderRow, set[int], dict[str, int]]:
    """Lock a provider; return its row, the ids in a column of its parts, and the ids of wanted names.

    :param column: the column of the parts that refers to ``names``, the resource classes or the traits.
    """
    # the lock and the three lookups are sent together
    tx.lock([uuid])
    present = queue_parts(tx, uuid, column)
    lookup = known_names.NameLookup(tx, names, wanted)
    row = read_locked(tx, uuid)
    return row, set(present.scalars), lookup.ids


def queue_parts(tx: WriteTransaction, uuid: str, column: sa.Column[int]) -> StatementAnswer:
    """Queue a query for the ids in a column of a provider's parts."""
    return tx.queue(_parts_lookup(column), {"provider": uuid})


@cache
def _parts_lookup(column: sa.Column[int]) -> PreparedStatement:
    # the condition has the uuid, because the id of the provider is not known before the batch is sent
    return PreparedStatement(
        sa.select(column)
        .join(resource_providers, _rp.id == column.table.c.provider_id)
        .where(_rp.uuid == sa.bindparam("provider"))
    )


def check_generation(row: ProviderRow, given: int) -> None:
    """Refuse a write of traits, aggregates or attributes with another generation than the provider's.

    :raises ConcurrentUpdate: the generation differs. Clients compare the words of this message.
    """
    if row.generation != given:
        # the message differs from that for inventories, as in OpenStack Placement
        raise ConcurrentUpdate(
            "Resource provider's generation already changed. Please update the generation and try again."
        )


def create_provider(tx: WriteTransaction, uuid: str, name: str, parent_uuid: str | None) -> Callable[[], str]:
    """Create a provider, either below a parent or as the root of a new tree.

    On a database that accepts several statements at once, the first attempt writes without reading. If the
    parent does not exist, a foreign key makes the attempt fail. The next attempt reads first, and finds the
    reason.

    :returns: a function that returns the uuid of the root; call it after the transaction.
    :raises InvalidRequest: the parent is the provider itself or does not exist.
    :raises Conflict: the uuid or the name is taken.
    """
    # the transaction locks the parent, too, so that the parent is not deleted or moved meanwhile
    tx.lock([uuid] if parent_uuid is None else [uuid, parent_uuid])
    parent = None
    if parent_uuid is not None:
        # the uuid is checked first, because the lookup would report that the parent does not exist
        if parent_uuid == uuid:
            raise InvalidRequest(
                _refusal_text("create", name, uuid, "parent provider UUID cannot be same as UUID")
            )
        # the new provider gets the root of its parent
        roots = tx.queue(_root_of, {"its_uuid": parent_uuid})
        if tx.optimistic and tx.sends_at_once:
            insert_below(tx, uuid, name, parent_uuid)
            # the answer is not read here: it comes with the commit, and reading it now would cost a round
            # trip
            return lambda: str(roots.scalars[0])
        parent = find_providers(tx, [parent_uuid]).get(parent_uuid)
        if parent is None:
            raise InvalidRequest(_refusal_text("create", name, uuid, "parent provider UUID does not exist"))
        root = roots.scalars[0]
    else:
        root = uuid
    # only later attempts look for a taken uuid or name: the first attempt relies on unique constraints, which
    # do not tell the reason
    if not tx.optimistic:
        _refuse_taken(tx, uuid, name)
    insert(tx, uuid, name, parent)
    return lambda: root


def insert(tx: WriteTransaction, uuid: str, name: str, parent: ProviderRow | None) -> None:
    """Insert the row of a new provider; the caller has locked the provider's bucket and its parent."""
    # The parent is None for a new root
    place = {"parent": parent and parent.id, "root": parent and parent.tree_root}
    tx.queue(_creation, {**_base_values(tx, uuid, name), **place})


def insert_below(tx: WriteTransaction, uuid: str, name: str, parent_uuid: str) -> None:
    """Insert a provider like :func:`insert`, but let the database find the parent, which may still be queued.

    MariaDB refuses the statement, so this function is only for databases that accept several statements at
    once.
    """
    tx.queue(_creation_below, {**_base_values(tx, uuid, name), "its_parent": parent_uuid})


def _base_values(tx: WriteTransaction, uuid: str, name: str) -> dict[str, Any]:
    # the parameters have other names than the columns, because SQLAlchemy itself uses the names of columns in
    # an insertion
    return {"its_uuid": uuid, "its_name": name, "its_bucket": bucket_of(uuid), "now": tx.now}


def _creation_at(parent: sa.ColumnElement[int], root: sa.ColumnElement[int]) -> PreparedStatement:
    # this is the counter of the provider's bucket, which this transaction's lock has incremented
    its_counter = present_counter(sa.bindparam("its_bucket", type_=sa.SmallInteger))
    return PreparedStatement(
        sa.insert(resource_providers).values(
            uuid=sa.bindparam("its_uuid"),
            name=sa.bindparam("its_name"),
            generation=0,
            parent_id=parent,
            root_id=root,
            bucket=sa.bindparam("its_bucket"),
            change_seq=its_counter,
            described_seq=its_counter,
            updated_at=sa.bindparam("now"),
        )
    )


def _of_parent(column: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return a query for a column of the parent, or for an id that the foreign key refuses."""
    found = sa.select(column).where(_parent.c.uuid == sa.bindparam("its_parent", type_=sa.String))
    return sa.func.coalesce(found.scalar_subquery(), NO_ID)


_creation: Final = _creation_at(sa.bindparam("parent"), sa.bindparam("root"))
# the parent is an alias of the table, because the insertion itself concerns the same table
_parent: Final = resource_providers.alias("parent")
_creation_below: Final = _creation_at(
    _of_parent(_parent.c.id), _of_parent(sa.func.coalesce(_parent.c.root_id, _parent.c.id))
)
_root_of: Final = PreparedStatement(
    sa.select(root_providers.c.uuid)
    .join(resource_providers, IS_TREE_ROOT)
    .where(_rp.uuid == sa.bindparam("its_uuid"))
)


def _refusal_text(what: str, name: str, uuid: str, why: str) -> str:
    return f'Unable to {what} resource provider "{name}", {uuid}: {why}'


def _refuse_taken(tx: WriteTransaction, uuid: str | None, name: str) -> None:
    # one query finds a taken uuid and a taken name, so that the message can tell which one is taken
    taken = tx.conn.execute(
        sa.select(_rp.uuid, _rp.name).where(sa.or_(_rp.uuid == uuid, _rp.name == name))
    ).all()
    if any(row.uuid == uuid for row in taken):
        raise Conflict(
            f"Conflicting resource provider uuid: {uuid} already exists.", exceptions.DUPLICATE_NAME
        )
    if taken:
        raise Conflict(
            f"Conflicting resource provider name: {name} already exists.", exceptions.DUPLICATE_NAME
        )


def update(
    tx: WriteTransaction, uuid: str, name: str, parent_uuid: str | None, *, sets_parent: bool, may_move: bool
) -> None:
    """Rename a provider and, with ``sets_parent``, put it below ``parent_uuid`` (None: make it a root).

    A root can be put below a provider of another tree at any time. With ``may_move`` (microversion 1.37) a
    child can also change its parent.

    :raises InvalidRequest: the provider must not move, or the new parent does not exist, or is below the
        provider.
    :raises Conflict: the name is taken.
    """
    # only this provider is locked here; its descendants are locked when they are known
    row = lock(tx, uuid)
    values: dict[str, Any] = {"name": name}
    if sets_parent:
        # the transaction locks all trees, because two simultaneous moves could create a cycle that neither of
        # them sees
        tx.lock_trees()
        subtree = _lock_subtree(tx, row)
        parent = _new_parent(tx, row, name, parent_uuid, may_move, subtree)
        # a request with the current parent moves nothing, so the subtree must get no stamp
        if (parent and parent.id) != row.parent_id:
            _set_roots(tx, row, parent, subtree)
            values["parent_id"] = parent and parent.id
            # descendants are stamped so that readers see their new root; their generations stay, because
            # clients see no change of them
            tx.note_changed(subtree, generation=False)
    # the current name is not checked, because the provider itself has it
    if name != row.name:
        _refuse_taken(tx, None, name)
    tx.conn.execute(sa.update(resource_providers).where(_rp.id == row.id).values(**values))
    tx.note_changed([row.id], generation=False)


def _new_parent(
    tx: WriteTransaction,
    row: ProviderRow,
    name: str,
    parent_uuid: str | None,
    may_move: bool,
    subtree: set[int],
) -> ProviderRow | None:
    def refuse_move(why: str) -> InvalidRequest:
        return InvalidRequest(_refusal_text("update", name, row.uuid, why))

    if parent_uuid is None:
        if row.parent_id is not None and not may_move:
            raise refuse_move("un-parenting a provider is not currently allowed.")
        return None
    parent = find_providers(tx, [parent_uuid]).get(parent_uuid)
    if parent is None:
        raise refuse_move("parent provider UUID does not exist.")
    if row.parent_id is not None and row.parent_id != parent.id and not may_move:
        raise refuse_move("re-parenting a provider is not currently allowed.")
    # the subtree is current, because it was read under the lock of trees
    if parent.id in subtree:
        raise refuse_move("creating loop in the provider tree is not allowed.")
    return parent


def _lock_subtree(tx: WriteTransaction, row: ProviderRow) -> set[int]:
    """Lock a provider and all its descendants; return their ids."""
    # the query is repeated until no new descendant appears, because a child may be added before its parent is
    # locked
    subtree = _subtree_ids(tx.conn, row)
    while True:
        tx.lock(tx.conn.execute(sa.select(_rp.uuid).where(_rp.id.in_(subtree))).scalars())
        locked, subtree = subtree, _subtree_ids(tx.conn, row)
        if subtree <= locked:
            return subtree


def _subtree_ids(conn: sa.Connection, row: ProviderRow) -> set[int]:
    # the function reads the whole tree and follows parents in Python, because recursive queries differ
    # between databases
    parents = conn.execute(sa.select(_rp.id, _rp.parent_id).where(_rp.root_id == row.tree_root)).all()
    found = {row.id}
    while True:
        more = {each for each, parent in parents if parent in found} - found
        if not more:
            return found
        found |= more


def _set_roots(tx: WriteTransaction, row: ProviderRow, parent: ProviderRow | None, subtree: set[int]) -> None:
    below = sorted(subtree - {row.id})
    new_root = row.id if parent is None else parent.tree_root
    if below:
        tx.conn.execute(sa.update(resource_providers).where(_rp.id.in_(below)).values(root_id=new_root))
    # the provider itself has a separate statement: as a new root it has no root_id, but its descendants have
    # a root_id
    own_root = None if parent is None else new_root
    tx.conn.execute(sa.update(resource_providers).where(_rp.id == row.id).values(root_id=own_root))


def delete(tx: WriteTransaction, uuid: str) -> None:
    """Delete a provider with all its parts; raise Conflict if it has children or allocations."""
    tx.lock([uuid])
    row = find_providers(tx, [uuid]).get(uuid)
    if row is None:
        raise NotFound(f"No resource provider with uuid {uuid} found for delete")
    # children are checked before allocations, as in OpenStack Placement
    if tx.has_row(_rp.parent_id == row.id):
        raise Conflict(
            f"Unable to delete parent resource provider {uuid}: It has child resource providers.",
            exceptions.CANNOT_DELETE_PARENT,
        )
    if tx.has_row(allocations.c.provider_id == row.id):
        raise Conflict(
            f"Unable to delete resource provider {uuid}: Resource provider has allocations.",
            exceptions.PROVIDER_IN_USE,
        )
    # the rows are deleted table by table, because most of these foreign keys do not cascade
    for table in (inventories, provider_traits, provider_aggregates, provider_attributes):
        tx.conn.execute(sa.delete(table).where(table.c.provider_id == row.id))
    tx.conn.execute(sa.delete(resource_providers).where(_rp.id == row.id))
    tx.note_deleted(uuid)
    # the deletion is recorded in the same transaction, so that no cursor can be after a deletion that has no
    # record yet
    changes.note_deletion(tx, uuid)
