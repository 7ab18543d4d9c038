"""Inventories and traits of others, from files of the format of Nova's ``provider.yaml`` (schema 1.0).

What Nova refuses is refused (its guide "Managing Resource Providers Using Config Files"), and what Placement
would refuse later. One file with the same class twice for one provider is refused, too: Nova takes the last.

The provider tree with what files add to it: a pure function.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from compute_agent.files import read_bounded
from compute_agent.inventory.provider_tree import FIELDS, ProviderInventory, ProviderNode, ProviderTree
from compute_agent.model.messages import ConfigError, printable
from compute_agent.model.resource import OWN_CLASSES

OPTION: Final = "[compute] provider_config_location"

COMPUTE_NODE: Final = "$COMPUTE_NODE"
"""Stands for the uuid of the root of the host."""

_MAJOR, _MINOR = 1, 0
_MAX_BYTES: Final = 1 << 18
"""Bytes of one file."""

_MAX_AMOUNT: Final = 2**31 - 1
"""The largest number in an inventory that Placement takes, and its default of ``max_unit``."""

_MAX_RATIO: Final = 3.4e38
_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_CUSTOM: Final = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")
_LEAST: Final[Mapping[str, int]] = {"total": 1, "reserved": 0, "min_unit": 1, "max_unit": 1, "step_size": 1}


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """What a file adds to one provider; ``uuid`` or ``name`` says to which."""

    source: str
    uuid: str = ""
    name: str = ""
    inventories: Mapping[str, ProviderInventory] = field(default_factory=dict, hash=False)
    traits: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """By what the provider is identified."""
        return self.uuid or self.name


@dataclass(frozen=True, slots=True)
class ProviderConfigs:
    """All files of the folder; ``warnings`` are what of them has no effect, a sentence each."""

    configs: tuple[ProviderConfig, ...] = ()
    warnings: tuple[str, ...] = ()


def files_in(location: str) -> tuple[Path, ...]:
    """The files of the folder by name: those that end in ``.yaml``. None if there is no folder.

    :raises OSError: it cannot be listed.
    """
    try:
        names = sorted(name for name in os.listdir(location) if name.endswith(".yaml") and name[0] != ".")
    except FileNotFoundError:
        return ()
    return tuple(Path(location, name) for name in names)


def read_provider_configs(location: str) -> ProviderConfigs:
    """What the files of a folder say.

    :raises ConfigError: one of them cannot be read, or is to be refused.
    """
    if not location:
        return ProviderConfigs()
    try:
        contents = {path: read_bounded(path, _MAX_BYTES) for path in files_in(location)}
    except OSError as error:
        raise ConfigError(f"{OPTION} = {location} cannot be read: {error}") from error
    if not contents:
        return ProviderConfigs(warnings=(f"{OPTION}: there is no file *.yaml in {location}",))
    return gathered(contents)


def gathered(contents: Mapping[Path, bytes]) -> ProviderConfigs:
    """What files with these contents say together.

    :raises ConfigError: one of them is to be refused, or two say something of the same provider.
    """
    found: dict[str, ProviderConfig] = {}
    warnings: list[str] = []
    for path, content in contents.items():
        try:
            for config in _parse(path, content, warnings):
                if (other := found.setdefault(config.id, config)) is not config:
                    raise ConfigError(f"the provider {config.id} has a definition in {other.source} already")
        except ConfigError as error:
            raise ConfigError(f"{OPTION}: {path}: {error}") from error
    return ProviderConfigs(tuple(found.values()), tuple(warnings))


def _parse(path: Path, content: bytes, warnings: list[str]) -> Iterator[ProviderConfig]:
    document = _load(content)
    if minor := _minor_version(document):
        warnings.append(
            f"{OPTION}: {path} is of schema version {_MAJOR}.{minor}, and {_MAJOR}.{_MINOR} is known: what is"
            " new in it is ignored"
        )
    for index, provider in enumerate(_list(document.get("providers", []), "providers")):
        where = f"providers[{index}]"
        one = _mapping(provider, where)
        config = _provider(str(path), one, where)
        if config.inventories or config.traits:
            yield config
        else:
            warnings.append(
                f"{OPTION}: {path}: {config.id} has no additional inventories or traits and is ignored"
            )


def _load(content: bytes) -> Any:
    import yaml  # only where there are such files

    class Loader(yaml.SafeLoader):
        """Merges of merges of merges (``<<``) are of almost any size: there is an end to them."""

        merged = 0

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            super().flatten_mapping(node)
            self.merged += len(node.value)
            if self.merged > _MAX_BYTES:
                raise ValueError("its merges (<<) are too large")

    try:
        return yaml.load(content, Loader)
    except Exception as error:  # content to no purpose has it raise almost anything
        raise ConfigError(f"it is no YAML: {printable(str(error))}") from error


def _minor_version(document: Any) -> int:
    """The minor version of the schema of a document."""
    meta = document.get("meta") if isinstance(document, dict) else None
    version = meta.get("schema_version") if isinstance(meta, dict) else None
    match = re.fullmatch(r"([1-9]\d{0,8})\.(0|[1-9]\d{0,8})", version) if isinstance(version, str) else None
    if match is None:
        raise ConfigError(f"meta.schema_version has to be a text such as '1.0', and is {_shown(version)}")
    if int(match[1]) != _MAJOR:
        raise ConfigError(f"schema version {version} is not supported: the major version has to be {_MAJOR}")
    return int(match[2])


def _provider(source: str, provider: Mapping[Any, Any], where: str) -> ProviderConfig:
    whose = _mapping(provider.get("identification"), f"{where}.identification")
    uuid, name = whose.get("uuid"), whose.get("name")
    if len(whose) != 1 or not whose.keys() <= {"uuid", "name"}:
        raise ConfigError(f"{where}.identification has to have one of uuid and name, and nothing else")
    if "uuid" in whose:
        if not isinstance(uuid, str) or not (uuid == COMPUTE_NODE or _UUID.fullmatch(uuid)):
            raise ConfigError(
                f"{where}.identification.uuid is no uuid and not {COMPUTE_NODE}: {_shown(uuid)}"
            )
        uuid = uuid if uuid == COMPUTE_NODE else uuid.lower()
    elif not isinstance(name, str) or not 1 <= len(name) <= 200:
        raise ConfigError(f"{where}.identification.name is no text of 1 to 200 characters: {_shown(name)}")
    return ProviderConfig(
        source,
        uuid or "",
        name or "",
        dict(_inventories(*_additional(provider, "inventories", where))),
        frozenset(_traits(*_additional(provider, "traits", where))),
    )


def _additional(provider: Mapping[Any, Any], kind: str, where: str) -> tuple[list[Any], str]:
    """What is below ``additional``, and where that is."""
    where = f"{where}.{kind}"
    found = _mapping(provider.get(kind, {}), where).get("additional", [])
    where = f"{where}.additional"
    return _list(found, where), where


def _inventories(additional: Iterable[Any], where: str) -> Iterator[tuple[str, ProviderInventory]]:
    seen = set()
    for item in additional:
        for name, amounts in _mapping(item, f"each of {where}").items():
            _check_custom(name, where)
            if name in seen:
                raise ConfigError(f"{where} has {name} twice")
            seen.add(name)
            yield name, _inventory(_mapping(amounts, f"{name} in {where}"), f"{name} in {where}")


def _inventory(amounts: Mapping[Any, Any], where: str) -> ProviderInventory:
    if unknown := sorted(map(_shown, amounts.keys() - _LEAST.keys() - {"allocation_ratio"})):
        raise ConfigError(f"{where} has {', '.join(unknown)}, which no inventory has")
    if "total" not in amounts:
        raise ConfigError(f"{where} has no total")
    found = {}
    for key, least in _LEAST.items():
        amount = amounts.get(key, _MAX_AMOUNT if key == "max_unit" else least)
        if isinstance(amount, bool) or not isinstance(amount, int) or not least <= amount <= _MAX_AMOUNT:
            raise ConfigError(
                f"{key} of {where} is no whole number from {least} to {_MAX_AMOUNT}: {_shown(amount)}"
            )
        found[key] = amount
    if found["reserved"] > found["total"]:
        raise ConfigError(f"reserved of {where} is more than its total")
    ratio = amounts.get("allocation_ratio", 1.0)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= _MAX_RATIO:
        raise ConfigError(f"allocation_ratio of {where} is no number above 0: {_shown(ratio)}")
    if math.floor((found["total"] - found["reserved"]) * ratio) > _MAX_AMOUNT:
        raise ConfigError(f"{where} is more than {_MAX_AMOUNT} with its allocation_ratio")
    return ProviderInventory(**found, allocation_ratio=float(ratio))


def _traits(additional: Iterable[Any], where: str) -> Iterator[str]:
    for name in additional:
        _check_custom(name, where)
        yield name


def _check_custom(name: Any, where: str) -> None:
    if not isinstance(name, str) or not _CUSTOM.fullmatch(name):
        raise ConfigError(
            f"{where} may only have names of CUSTOM_ and up to 248 of A-Z, 0-9 and _, and has {_shown(name)}"
        )


def _mapping(value: Any, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is no mapping: {_shown(value)}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{where} is no list: {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """A value as it can be told; not what is in it, which may be without end."""
    if isinstance(value, dict | list | set | tuple):
        return f"a {type(value).__name__}"
    try:
        return printable(repr(value))
    except ValueError:
        return "a number without end"


def with_additions(
    tree: ProviderTree, configs: Iterable[ProviderConfig]
) -> tuple[ProviderTree, tuple[str, ...]]:
    """The tree with what the files add, and what of them has no effect on it, a sentence each.

    What they say of an inventory holds whatever is set through the API, as in Nova. A root that is named by
    its uuid or name gets nothing of what is for ``$COMPUTE_NODE``.

    :raises ConfigError: two of them are of the same provider, or one has what the agent itself provides.
    """
    nodes = {node.uuid: node for node in tree.nodes}
    explicit: dict[str, ProviderConfig] = {}
    default, warnings = None, []
    for config in configs:
        if config.uuid == COMPUTE_NODE:
            default = config
            continue
        node = _find(tree, config)
        if node is None:
            warnings.append(
                f"{OPTION}: {config.source}: there is no provider {config.id} of this host, it is skipped"
            )
            continue
        if (other := explicit.setdefault(node.uuid, config)) is not config:
            raise ConfigError(
                f"{OPTION}: {config.source} and {other.source} define the same provider, {other.id} and"
                f" {config.id}"
            )
    if default is not None:
        explicit.setdefault(tree.root.uuid, default)
    if tree.beside and tree.root.uuid in explicit:
        config = explicit.pop(tree.root.uuid)
        warnings.append(
            f"{OPTION}: {config.source}: {config.id} is nova-compute's and is skipped: put it into the"
            f" {OPTION} of nova-compute"
        )
    for uuid, config in explicit.items():
        nodes[uuid] = _extended(nodes[uuid], config, tree.nodes)
    classes = frozenset(name for config in explicit.values() for name in config.inventories)
    configured = tree.configured | {(name, field) for name in classes for field in FIELDS}
    return replace(tree, nodes=tuple(nodes.values()), configured=configured), tuple(warnings)


def _find(tree: ProviderTree, config: ProviderConfig) -> ProviderNode | None:
    return next((node for node in tree.nodes if config.id == (node.uuid if config.uuid else node.name)), None)


def _extended(node: ProviderNode, config: ProviderConfig, all_nodes: Iterable[ProviderNode]) -> ProviderNode:
    derived = frozenset(name for one in all_nodes for name in one.inventories)
    _refuse(config, "inventories", config.inventories.keys() & (OWN_CLASSES | derived))
    _refuse(config, "traits", config.traits & node.traits)
    return replace(
        node, inventories={**node.inventories, **config.inventories}, traits=node.traits | config.traits
    )


def _refuse(config: ProviderConfig, kind: str, names: Iterable[str]) -> None:
    if common := sorted(names):
        raise ConfigError(
            f"{OPTION}: {config.source}: {kind} of {config.id} that are the agent's own: {', '.join(common)};"
            " remove them from the file"
        )
