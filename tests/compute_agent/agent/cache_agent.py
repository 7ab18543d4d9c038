"""Runs an agent on a fake host with two caches and a fake resctrl."""

import os

from compute_agent.resctrl.groups import read_groups
from compute_agent.resctrl.layout import cache_mask
from compute_agent.resctrl.mount import read_platform
from tests.compute_agent.agent.running import RunningAgent
from tests.compute_agent.two_caches import CPU, two_caches


def host_tree(root):
    """Write the files of a host with two CPUs, each with a cache of its own."""
    files = two_caches() | {
        f"{CPU}/online": "0-1",
        f"{CPU}/present": "0-1",
        "proc/meminfo": "MemTotal: 16777216 kB",
    }
    files |= {f"{CPU}/cpu{cpu}/topology/physical_package_id": "0" for cpu in (0, 1)}
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content + "\n")


class CacheAgent(RunningAgent):
    """An agent on a host with a fake resctrl."""

    def __init__(self, write_ini, client, files):
        self.files = files
        super().__init__(write_ini, client)

    def l3(self, cache):
        """The resource provider of an L3 cache."""
        return self.provider(f"testhost_L3_{cache}")

    def provider(self, name):
        return next(node.uuid for node in self.agent.pipeline.host_state.tree.nodes if node.name == name)

    def run(self, consumer, **params):
        return self.ask("guest.run", uuid=consumer, command=["sleep", "60"], **params)

    def groups(self):
        return {row["group"]: row for row in self.ask("resctrl.groups")}

    def mask(self, group, cache):
        present = read_groups(self.files)
        return cache_mask(read_platform(self.files), present.groups[group].schemata, cache)

    def inventory(self, provider, name):
        return self.client.get_inventories(provider)[0].get(name)


def uid(number):
    """The uuid of the guest with this number. No process of another test has the same uuid.

    An agent that ends a guest kills all processes that have the guest's uuid in their environment.
    """
    return f"{os.getpid():08x}-0000-0000-0000-{number:012}"
