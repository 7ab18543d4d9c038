"""Pools of CPUs that the configuration has no more: what guests hold of them still says where they run.

Where a pool was cannot be told from hardware and configuration once its section is gone. It is kept in a
small file of the state folder, which is written before guests are placed.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final

from compute_agent.files import UnsafeFileError, put_aside, read_own, write_durably
from compute_agent.host.topology import HostTopology
from compute_agent.inventory.tree import ProviderNode, ProviderTree
from compute_agent.model import cpuset
from compute_agent.model.messages import is_uuid

LOG = logging.getLogger(__name__)

FILE_NAME: Final = "pools.json"

_MAX_KEPT: Final = 1000
"""Providers of pools; the oldest go."""


def recall(state_path: Path, tree: ProviderTree, topology: HostTopology) -> tuple[ProviderNode, ...]:
    """The providers of pools that were there before and are not in ``tree``, without inventories.

    A file that is no such file tells nothing, with a log line.
    """
    try:
        kept = _load(state_path / FILE_NAME)
    except FileNotFoundError:
        return ()
    except (OSError, UnsafeFileError, ValueError, KeyError, TypeError, AttributeError) as error:
        LOG.warning("%s cannot be used, former pools are not known: %s", state_path / FILE_NAME, error)
        return ()
    online = topology.online
    return tuple(_node(uuid, one, online) for uuid, one in kept.items() if tree.get(uuid) is None)


def keep(state_path: Path, tree: ProviderTree) -> None:
    """Keep where the pools of ``tree`` are, beside those that were there before.

    :raises OSError: it cannot be written.
    """
    path = state_path / FILE_NAME
    present = {
        node.uuid: {
            "name": node.name,
            "parent": node.parent,
            "pool": node.pool,
            "cpus": cpuset.format(node.cpus),
        }
        for node in tree.nodes
        if node.pool
    }
    try:
        before = _load(path)
    except FileNotFoundError:
        before = {}
    except (ValueError, KeyError, TypeError, AttributeError):
        put_aside(path)
        before = {}
    merged = {**{uuid: one for uuid, one in before.items() if uuid not in present}, **present}
    if merged != before:
        kept = dict(list(merged.items())[-_MAX_KEPT:])
        write_durably(path, json.dumps(kept, indent=1).encode())


def _load(path: Path) -> dict[str, dict[str, Any]]:
    content = json.loads(read_own(path))
    for uuid, one in content.items():
        cpuset.parse(one["cpus"])
        texts = (one["name"], one["pool"], one["parent"])
        if not is_uuid(uuid) or not all(isinstance(text, str) and text for text in texts):
            raise ValueError(f"{uuid!r} is no pool")
    return dict(content)


def _node(uuid: str, one: dict[str, Any], online: frozenset[int]) -> ProviderNode:
    cpus = cpuset.parse(one["cpus"]) & online
    return ProviderNode(one["name"], uuid, one["parent"], cpus=cpus, pool=one["pool"])
