"""Provider trees of a host, and a store for the values that a reporter must keep."""

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.report.reporter import HostReporter

ROOT = "11111111-0000-4000-8000-000000000001"
NODE_0 = "11111111-0000-4000-8000-000000000002"
PCPU = ProviderInventory(4, max_unit=4)
DISK = ProviderInventory(10, max_unit=10)


def numa_tree(**inventories):
    return ProviderTree(
        (
            ProviderNode("h", ROOT, None, {"DISK_GB": DISK}, frozenset({"COMPUTE_NODE"})),
            ProviderNode("h_0", NODE_0, ROOT, {"PCPU": PCPU, **inventories}, frozenset({"HW_NUMA_ROOT"})),
        )
    )


class Memory:
    """Keeps in memory the values that a reporter stores."""

    def __init__(self):
        self.owned = {}

    def keep(self, owned):
        self.owned = owned

    def reporter(self, client):
        return HostReporter(client, self.owned, self.keep)
