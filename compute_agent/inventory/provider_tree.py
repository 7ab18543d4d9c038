"""What is reported: a tree of resource providers, their inventories and traits, and the CPUs behind them.

Field names and limits are those of the Placement API (PUT /resource_providers/{uuid}/inventories).

The uuid of the root provider, made once and kept for as long as the host lives, and its name.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from compute_agent.files import open_own, read_own, secure_folder, write_durably
from compute_agent.model.resource import STOCK_NAMES

Field = Literal["reserved", "allocation_ratio"]
"""What of an inventory operators set as well."""

FIELDS: Final[tuple[Field, ...]] = ("reserved", "allocation_ratio")


@dataclass(frozen=True, slots=True)
class ProviderInventory:
    """How much of one resource class a provider has."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = 1
    step_size: int = 1
    allocation_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class ProviderNode:
    """One resource provider; ``parent`` is the parent's uuid, None for the root.

    ``cpus``, ``numa_nodes`` and ``l3_ids`` are the zone of the host that it stands for: its online CPUs
    (whether or not they are in a CPU set), and the NUMA nodes and L3 caches that lie in it or around it.
    ``pool`` is the pool that it is the part of a zone of: only those CPUs of the zone are its own.
    ``withheld`` is what of a class is to be reserved beside that of its inventory, as far as nobody holds it.
    """

    name: str
    uuid: str
    parent: str | None
    inventories: Mapping[str, ProviderInventory] = field(default_factory=dict, hash=False)
    traits: frozenset[str] = frozenset()
    attributes: Mapping[str, str | float] = field(default_factory=dict, hash=False)
    cpus: frozenset[int] = frozenset()
    numa_nodes: frozenset[int] = frozenset()
    l3_ids: frozenset[int] = frozenset()
    pool: str = ""
    withheld: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ProviderTree:
    """All providers of a host, the root first and every parent before its children.

    ``configured`` are the resource classes and fields of inventories that options of the ini file set, rather
    than defaults. ``beside``: the root is nova-compute's, and nothing of it is the agent's to write.
    """

    nodes: tuple[ProviderNode, ...]
    configured: frozenset[tuple[str, Field]] = frozenset()
    beside: bool = False

    @property
    def root(self) -> ProviderNode:
        """The provider that stands for the whole host."""
        return self.nodes[0]

    @property
    def ours(self) -> tuple[ProviderNode, ...]:
        """The providers that the agent makes, writes and removes."""
        return self.nodes[1:] if self.beside else self.nodes

    def get(self, provider_uuid: str) -> ProviderNode | None:
        """The provider of that uuid, None if it is not one of this host's."""
        return next((node for node in self.nodes if node.uuid == provider_uuid), None)

    def providing(self, resource_class: str) -> tuple[ProviderNode, ...]:
        """The providers that have an inventory of ``resource_class``."""
        return tuple(node for node in self.nodes if resource_class in node.inventories)

    def with_attributes(self, told: Mapping[str, str | float]) -> ProviderTree:
        """The tree, with more attributes of the first provider that is the agent's, if it makes any."""
        if not self.ours:
            return self
        first = self.ours[0]
        changed = replace(first, attributes={**first.attributes, **told})
        return replace(self, nodes=tuple(changed if node is first else node for node in self.nodes))


def child_uuid(root_uuid: str, zone: str) -> str:
    """Uuid of the provider of a zone of the host (``NUMA_0``, ``L3_2``): the same on every start.

    The zone, not the whole provider name, goes into it, so that a host that is renamed keeps its providers.
    """
    return str(uuid.uuid5(uuid.UUID(root_uuid), zone))


def with_stock_names(tree: ProviderTree) -> ProviderTree:
    """The same tree for a server that does not know ``LLC`` and ``MBA``.

    It has ``CUSTOM_LLC`` and ``CUSTOM_MBA`` instead.
    """
    return replace(
        tree,
        nodes=tuple(
            replace(
                node,
                inventories={STOCK_NAMES.get(name, name): held for name, held in node.inventories.items()},
                withheld={STOCK_NAMES.get(name, name): amount for name, amount in node.withheld.items()},
            )
            for node in tree.nodes
        ),
    )


FILE_NAME: Final = "compute_id"
NAME_FILE: Final = "provider_name"


class IdentityError(Exception):
    """The file of the uuid holds something else; the text names the file and says what to do."""


def load_or_create(state_path: Path) -> str:
    """The uuid kept in ``state_path``, made when there is none; whoever asks at the same time gets the same.

    An operator may put a uuid of their own into the file before the first start.

    :raises IdentityError: for a file with other content: a new uuid would leave the host's allocations with a
        provider that nobody serves.
    :raises OSError: the folder cannot be made or written.
    :raises UnsafeFileError: others could change what is in it.
    """
    secure_folder(state_path)
    path = state_path / FILE_NAME
    lock = open_own(state_path / f"{FILE_NAME}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return _read(path)
        except FileNotFoundError:
            made = str(uuid.uuid4())
            write_durably(path, f"{made}\n".encode(), mode=0o644)
            return made
    finally:
        os.close(lock)


def look_up(state_path: Path) -> str | None:
    """The uuid kept in ``state_path``; None where there is none. Nothing is made.

    :raises IdentityError:
    :raises OSError:
    """
    try:
        return _read(state_path / FILE_NAME)
    except FileNotFoundError:
        return None


def kept_name(state_path: Path) -> str:
    """The name that the root provider had last; empty where none is kept.

    :raises IdentityError:
    :raises OSError:
    """
    path = state_path / NAME_FILE
    try:
        content = read_own(path)
    except FileNotFoundError:
        return ""
    try:
        name = content.decode().strip()
    except ValueError:
        name = ""
    if not name or not name.isprintable():
        raise IdentityError(
            f"{path} holds {content[:60]!r} instead of the name of this host's provider: write that into it,"
            " or set [compute] resource_provider_name and remove the file"
        )
    return name


def keep_name(state_path: Path, name: str) -> None:
    """Keep the name of the root provider.

    :raises IdentityError:
    :raises OSError:
    """
    if kept_name(state_path) != name:
        write_durably(state_path / NAME_FILE, f"{name}\n".encode(), mode=0o644)


def _read(path: Path) -> str:
    content = read_own(path)
    try:
        return str(uuid.UUID(content.decode("ascii").strip()))
    except ValueError as error:
        raise IdentityError(
            f"{path} holds {content[:60]!r} instead of a uuid: restore the uuid that this host's provider"
            " has in Placement, or remove the file if it has none"
        ) from error
