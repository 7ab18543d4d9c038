"""Additional inventories and traits, from files in the format of Nova's ``provider.yaml`` (schema 1.0).

The agent refuses files that Nova refuses (Nova's guide "Managing Resource Providers Using Config Files"), and
values that Placement would refuse. In one case the agent is stricter than Nova: it refuses a file that lists
a class twice for one provider. Nova would use the last value.
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
from compute_agent.model.messages import ConfigError, printable_text
from compute_agent.model.resource import OWN_CLASSES

OPTION: Final = "[compute] provider_config_location"

COMPUTE_NODE: Final = "$COMPUTE_NODE"
"""The placeholder for the uuid of the root provider."""

_MAJOR, _MINOR = 1, 0
_MAX_BYTES: Final = 1 << 18
"""Maximum size in bytes of a provider file. Larger files are refused."""

_MAX_AMOUNT: Final = 2**31 - 1
"""The largest number in an inventory of Placement. The default of ``max_unit`` is the same number."""

# The largest ratio. OpenStack Placement stores ratios as floats of single precision, and refuses larger
# ratios.
_MAX_RATIO: Final = 3.4e38
_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_CUSTOM: Final = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")
_LEAST: Final[Mapping[str, int]] = {"total": 1, "reserved": 0, "min_unit": 1, "max_unit": 1, "step_size": 1}


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """The additions of a file to one provider, which is identified by ``uuid`` or ``name``.

    :ivar source: the path of the file.
    """

    source: str
    uuid: str = ""
    name: str = ""
    inventories: Mapping[str, ProviderInventory] = field(default_factory=dict, hash=False)
    traits: frozenset[str] = frozenset()

    @property
    def provider_id(self) -> str:
        """The uuid of the provider, or its name if the file has no uuid."""
        return self.uuid or self.name


@dataclass(frozen=True, slots=True)
class ProviderConfigs:
    """The additions of all files in the folder.

    :ivar warnings: messages about those entries of the files that have no effect.
    """

    configs: tuple[ProviderConfig, ...] = ()
    warnings: tuple[str, ...] = ()


def files_in(location: str) -> tuple[Path, ...]:
    """The files ``*.yaml`` of the folder, sorted by name; none if the folder does not exist.

    :raises OSError: the folder cannot be listed.
    """
    try:
        # Hidden files are left out, as in Nova.
        names = sorted(name for name in os.listdir(location) if name.endswith(".yaml") and name[0] != ".")
    except FileNotFoundError:
        return ()
    return tuple(Path(location, name) for name in names)


def read_provider_configs(location: str) -> ProviderConfigs:
    """Read the provider files of a folder. An empty ``location`` stands for no files.

    :raises ConfigError: a file cannot be read, or is wrong.
    """
    if not location:
        return ProviderConfigs()
    try:
        contents = {path: read_bounded(path, _MAX_BYTES) for path in files_in(location)}
    except OSError as error:
        raise ConfigError(f"{OPTION} = {location} cannot be read: {error}") from error
    if not contents:
        return ProviderConfigs(warnings=(f"{OPTION}: there is no file *.yaml in {location}",))
    return gather_configs(contents)


def gather_configs(contents: Mapping[Path, bytes]) -> ProviderConfigs:
    """Parse the contents of provider files.

    :raises ConfigError: a file is wrong, or two files define the same provider.
    """
    found: dict[str, ProviderConfig] = {}
    warnings: list[str] = []
    for path, content in contents.items():
        try:
            for config in _parse(path, content, warnings):
                if (other := found.setdefault(config.provider_id, config)) is not config:
                    raise ConfigError(
                        f"the provider {config.provider_id} has a definition in {other.source} already"
                    )
        except ConfigError as error:
            raise ConfigError(f"{OPTION}: {path}: {error}") from error
    return ProviderConfigs(tuple(found.values()), tuple(warnings))


def _parse(path: Path, content: bytes, warnings: list[str]) -> Iterator[ProviderConfig]:
    document = _load(content)
    if minor := _minor_version(document):
        warnings.append(
            f"{OPTION}: {path} has schema version {_MAJOR}.{minor}, but {_MAJOR}.{_MINOR} is known: new parts"
            " of it are ignored"
        )
    for index, provider in enumerate(_check_list(document.get("providers", []), "providers")):
        where = f"providers[{index}]"
        one = _check_mapping(provider, where)
        config = _parse_provider(str(path), one, where)
        if config.inventories or config.traits:
            yield config
        else:
            warnings.append(
                f"{OPTION}: {path}: {config.provider_id} has no additional inventories or traits and is"
                " ignored"
            )


def _load(content: bytes) -> Any:
    import yaml  # The module is imported here, because most hosts have no such files.

    class BoundedLoader(yaml.SafeLoader):
        """A loader that limits merges (``<<``): with merges, a short document can expand to any size."""

        merged = 0

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            super().flatten_mapping(node)
            self.merged += len(node.value)
            if self.merged > _MAX_BYTES:
                raise ConfigError(
                    f"the merge keys (<<) of this file expand to more than {_MAX_BYTES} entries: write the"
                    " values out"
                )

    try:
        return yaml.load(content, BoundedLoader)
    except ConfigError:
        raise
    except Exception as error:  # For hostile content the YAML parser can raise almost any exception.
        raise ConfigError(f"it is not YAML: {printable_text(str(error))}") from error


def _minor_version(document: Any) -> int:
    """The minor version in the ``schema_version`` of a document.

    :raises ConfigError: the version is missing, malformed, or of another major version.
    """
    meta = document.get("meta") if isinstance(document, dict) else None
    version = meta.get("schema_version") if isinstance(meta, dict) else None
    match = re.fullmatch(r"([1-9]\d{0,8})\.(0|[1-9]\d{0,8})", version) if isinstance(version, str) else None
    if match is None:
        raise ConfigError(
            f"meta.schema_version has to be a text such as '1.0', and is {_show_value(version)}"
        )
    if int(match[1]) != _MAJOR:
        raise ConfigError(f"schema version {version} is not supported: the major version has to be {_MAJOR}")
    return int(match[2])


def _parse_provider(source: str, provider: Mapping[Any, Any], where: str) -> ProviderConfig:
    whose = _check_mapping(provider.get("identification"), f"{where}.identification")
    uuid, name = whose.get("uuid"), whose.get("name")
    if len(whose) != 1 or not whose.keys() <= {"uuid", "name"}:
        raise ConfigError(f"{where}.identification has to have one of uuid and name, and nothing else")
    if "uuid" in whose:
        if not isinstance(uuid, str) or not (uuid == COMPUTE_NODE or _UUID.fullmatch(uuid)):
            raise ConfigError(
                f"{where}.identification.uuid is neither a uuid nor {COMPUTE_NODE}: {_show_value(uuid)}"
            )
        uuid = uuid if uuid == COMPUTE_NODE else uuid.lower()
    elif not isinstance(name, str) or not 1 <= len(name) <= 200:
        raise ConfigError(
            f"{where}.identification.name is not a text of 1 to 200 characters: {_show_value(name)}"
        )
    traits, in_traits = _additional_items(provider, "traits", where)
    return ProviderConfig(
        source,
        uuid or "",
        name or "",
        dict(_parse_inventories(*_additional_items(provider, "inventories", where))),
        frozenset(_check_custom(trait, in_traits) for trait in traits),
    )


def _additional_items(provider: Mapping[Any, Any], kind: str, where: str) -> tuple[list[Any], str]:
    """The list ``additional`` below the key ``kind`` of a provider, and the list's path for messages."""
    where = f"{where}.{kind}"
    found = _check_mapping(provider.get(kind, {}), where).get("additional", [])
    where = f"{where}.additional"
    return _check_list(found, where), where


def _parse_inventories(additional: Iterable[Any], where: str) -> Iterator[tuple[str, ProviderInventory]]:
    seen = set()
    for item in additional:
        for name, amounts in _check_mapping(item, f"each of {where}").items():
            _check_custom(name, where)
            if name in seen:
                raise ConfigError(f"{where} has {name} twice")
            seen.add(name)
            yield name, _parse_inventory(_check_mapping(amounts, f"{name} in {where}"), f"{name} in {where}")


def _parse_inventory(amounts: Mapping[Any, Any], where: str) -> ProviderInventory:
    if unknown := sorted(map(_show_value, amounts.keys() - _LEAST.keys() - {"allocation_ratio"})):
        raise ConfigError(f"{where} has {', '.join(unknown)}, which no inventory has")
    if "total" not in amounts:
        raise ConfigError(f"{where} has no total")
    found = {}
    for key, least in _LEAST.items():
        amount = amounts.get(key, _MAX_AMOUNT if key == "max_unit" else least)
        if isinstance(amount, bool) or not isinstance(amount, int) or not least <= amount <= _MAX_AMOUNT:
            raise ConfigError(
                f"{key} of {where} is not a whole number from {least} to {_MAX_AMOUNT}: {_show_value(amount)}"
            )
        found[key] = amount
    if found["reserved"] > found["total"]:
        raise ConfigError(f"reserved of {where} is more than its total")
    ratio = amounts.get("allocation_ratio", 1.0)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= _MAX_RATIO:
        raise ConfigError(f"allocation_ratio of {where} is not a number above 0: {_show_value(ratio)}")
    if math.floor((found["total"] - found["reserved"]) * ratio) > _MAX_AMOUNT:
        raise ConfigError(f"{where} is more than {_MAX_AMOUNT} with its allocation_ratio")
    return ProviderInventory(**found, allocation_ratio=float(ratio))


def _check_custom(name: Any, where: str) -> str:
    if not isinstance(name, str) or not _CUSTOM.fullmatch(name):
        raise ConfigError(
            f"{where} may only have names of CUSTOM_ and up to 248 of A-Z, 0-9 and _, and has"
            f" {_show_value(name)}"
        )
    return name


def _check_mapping(value: Any, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is not a mapping: {_show_value(value)}")
    return value


def _check_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{where} is not a list: {_show_value(value)}")
    return value


def _show_value(value: Any) -> str:
    """A value as text for a message; only the type if the value is a container, which can be endless."""
    if isinstance(value, dict | list | set | tuple):
        return f"a {type(value).__name__}"
    try:
        return printable_text(repr(value))
    except ValueError:
        # Python refuses to print a number of more than 4300 digits (sys.set_int_max_str_digits).
        return "a number without end"


def with_additions(
    tree: ProviderTree, configs: Iterable[ProviderConfig]
) -> tuple[ProviderTree, tuple[str, ...]]:
    """Return the tree with the additions of the files, and messages about additions without effect.

    As in Nova, inventories from files take precedence over values that were set through the API. If a file
    names the root provider by uuid or name, additions for ``$COMPUTE_NODE`` do not apply to it.

    :raises ConfigError: two files define the same provider, or a file has a class or trait of the agent.
    """
    nodes = {node.uuid: node for node in tree.nodes}
    explicit: dict[str, ProviderConfig] = {}
    default, warnings = None, []
    for config in configs:
        if config.uuid == COMPUTE_NODE:
            default = config
            continue
        node = _find_node(tree, config)
        if node is None:
            warnings.append(
                f"{OPTION}: {config.source}: there is no provider {config.provider_id} of this host, it is"
                " skipped"
            )
            continue
        if (other := explicit.setdefault(node.uuid, config)) is not config:
            raise ConfigError(
                f"{OPTION}: {config.source} and {other.source} define the same provider,"
                f" {other.provider_id} and {config.provider_id}"
            )
    if default is not None:
        # A definition by uuid or name takes precedence over ``$COMPUTE_NODE``.
        explicit.setdefault(tree.root.uuid, default)
    if tree.beside and tree.root.uuid in explicit:
        config = explicit.pop(tree.root.uuid)
        warnings.append(
            f"{OPTION}: {config.source}: {config.provider_id} is nova-compute's and is skipped: put it"
            f" into the {OPTION} of nova-compute"
        )
    for uuid, config in explicit.items():
        nodes[uuid] = _extend_node(nodes[uuid], config, tree.nodes)
    classes = frozenset(name for config in explicit.values() for name in config.inventories)
    configured = tree.configured | {(name, field) for name in classes for field in FIELDS}
    return replace(tree, nodes=tuple(nodes.values()), configured=configured), tuple(warnings)


def _find_node(tree: ProviderTree, config: ProviderConfig) -> ProviderNode | None:
    return next(
        (node for node in tree.nodes if config.provider_id == (node.uuid if config.uuid else node.name)), None
    )


def _extend_node(
    node: ProviderNode, config: ProviderConfig, all_nodes: Iterable[ProviderNode]
) -> ProviderNode:
    derived = frozenset(name for one in all_nodes for name in one.inventories)
    _refuse_own(config, "inventories", config.inventories.keys() & (OWN_CLASSES | derived))
    _refuse_own(config, "traits", config.traits & node.traits)
    return replace(
        node, inventories={**node.inventories, **config.inventories}, traits=node.traits | config.traits
    )


def _refuse_own(config: ProviderConfig, kind: str, names: Iterable[str]) -> None:
    if common := sorted(names):
        raise ConfigError(
            f"{OPTION}: {config.source}: {kind} of {config.provider_id} that are the agent's own:"
            f" {', '.join(common)}; remove them from the file"
        )
