"""Imitates the effects of a nova-compute on Placement: its report client, with a libvirt driver that has few
resource classes.

From Nova's documentation and code (nova/scheduler/client/report.py, compute/resource_tracker.py,
virt/libvirt/driver.py):

- It makes its root, a provider with the name of the hypervisor and the uuid of its compute node.
- It keeps a copy of the whole tree, foreign children included, and reads it again every few periods
  ([compute] resource_provider_association_refresh; a period is a minute).
- In each period the driver replaces all inventories of the root; traits that the driver knows are added or
  removed, COMPUTE_STATUS_DISABLED follows the service record, others stay.
- What differs from its copy is sent, of every provider of the tree; children that it never knew are left
  alone.
- It has a provider for each PCI device ([pci] report_in_placement), found by its name, with exactly its own
  inventory and traits. A provider with the trait of such devices that is no device any more is removed
  (nova/compute/pci_placement_translator.py).
- A conflict makes it drop its copy and try again, four times.
- When its service is deleted, the whole tree goes, from the leaves up.
"""

import copy
from uuid import UUID, uuid5

from compute_agent.report.answers import ConflictError, NotFoundError
from compute_agent.report.client import PlacementClient

DRIVER_TRAITS = {
    "COMPUTE_NODE": True,
    "COMPUTE_VOLUME_MULTI_ATTACH": True,
    "COMPUTE_NET_ATTACH_INTERFACE": True,
    "COMPUTE_TRUSTED_CERTS": True,
    "COMPUTE_REMOTE_MANAGED_PORTS": False,
    "HW_CPU_HYPERTHREADING": True,
    "HW_CPU_X86_VMX": True,
    "HW_CPU_X86_SVM": False,
}
MANAGED = "COMPUTE_MANAGED_PCI_DEVICE"
REFRESH = 5


class RecordingClient(PlacementClient):
    """A client that remembers each request with its result: (method, path, status)."""

    def __init__(self, adapter):
        super().__init__(adapter)
        self.writes = []

    def _send(self, method, url, body, headers, shape):
        if method == "GET":
            return super()._send(method, url, body, headers, shape)
        try:
            answer = super()._send(method, url, body, headers, shape)
        except Exception as error:
            self.writes.append((method, url, getattr(error, "status", None)))
            raise
        self.writes.append((method, url, 200))
        return answer


class NovaCompute:
    """The nova-compute of one host."""

    def __init__(self, client, uuid, name, vcpus=12, pcpus=4, memory_mb=32768):
        self.client = RecordingClient(client.adapter)
        self.uuid = uuid
        self.name = name
        self.inventory = {
            "VCPU": self._of(vcpus),
            "PCPU": self._of(pcpus),
            "MEMORY_MB": {**self._of(memory_mb), "reserved": 512},
            "DISK_GB": self._of(100),
        }
        self.service_disabled = False
        self.devices = {}
        """PCI devices that it reports: the resource class by address."""
        self._copy = {}
        self._age = 0

    @staticmethod
    def _of(total):
        fields = {"total": total, "reserved": 0, "min_unit": 1, "max_unit": total, "step_size": 1}
        return {**fields, "allocation_ratio": 1.0}

    @property
    def writes(self):
        """The requests since the last call that may change something."""
        found, self.client.writes = self.client.writes, []
        return found

    def update(self):
        """Run one period of nova-compute (update_available_resource)."""
        for attempt in range(4):
            try:
                self._update()
                return
            except ConflictError:
                self._copy = {}
                if attempt == 3:
                    raise

    def _update(self):
        if not self._copy or self._age >= REFRESH:
            self._refresh()
        self._age += 1
        if self._follow_devices():
            self._refresh()
        new = copy.deepcopy(self._copy)
        root = new[self.uuid]
        ratio = root["inventories"].get("VCPU", {}).get("allocation_ratio", 4.0)
        root["inventories"] = {
            **self.inventory,
            "VCPU": {**self.inventory["VCPU"], "allocation_ratio": ratio},
        }
        traits = root["traits"] | {name for name, there in DRIVER_TRAITS.items() if there}
        traits -= {name for name, there in DRIVER_TRAITS.items() if not there}
        disabled = {"COMPUTE_STATUS_DISABLED"}
        root["traits"] = traits | disabled if self.service_disabled else traits - disabled
        for address, resource_class in self.devices.items():
            (device,) = (each for each in new.values() if each["name"] == self._device_name(address))
            kept = device["inventories"].get(resource_class, self._of(1))
            device["inventories"] = {resource_class: {**kept, "total": 1, "max_unit": 1}}
            device["traits"] = {MANAGED}
        for uuid in reversed(list(new)):
            self._flush(uuid, new[uuid])

    def _device_name(self, address):
        return f"{self.name}_{address.upper()}"

    def _follow_devices(self):
        """Make missing providers of PCI devices, and remove providers of devices that are gone.

        Return whether any provider was made or removed.
        """
        names = {self._device_name(address) for address in self.devices}
        missing = names - {each["name"] for each in self._copy.values()}
        gone = [
            uuid
            for uuid, each in self._copy.items()
            if MANAGED in each["traits"] and each["name"] not in names
        ]
        for name in sorted(missing):
            self.client.create_provider(str(uuid5(UUID(self.uuid), name)), name, self.uuid)
        for uuid in gone:
            self.client.delete_provider(uuid)
        return bool(missing or gone)

    def _refresh(self):
        records = self.client.providers_in_tree(self.uuid)
        if not records:
            self.client.create_provider(self.uuid, self.name, None)
            records = self.client.providers_in_tree(self.uuid)
        records = sorted(records, key=lambda record: record.parent_uuid is not None)
        self._copy = {record.uuid: {"name": record.name, **self._read(record.uuid)} for record in records}
        self._age = 0

    def _read(self, uuid):
        inventories, _ = self.client.get_inventories(uuid)
        aggregates = self.client.send_request(
            "GET", f"/resource_providers/{uuid}/aggregates", shape={"aggregates": [str]}
        )["aggregates"]
        traits, generation = self.client.get_traits(uuid)
        return {
            "inventories": inventories,
            "traits": set(traits),
            "aggregates": set(aggregates),
            "generation": generation,
        }

    def _flush(self, uuid, wanted):
        has = self._copy[uuid]
        if wanted["inventories"] != has["inventories"]:
            has["generation"] = self.client.set_inventories(uuid, wanted["inventories"], has["generation"])
            has["inventories"] = wanted["inventories"]
        if wanted["aggregates"] != has["aggregates"]:
            body = {
                "aggregates": sorted(wanted["aggregates"]),
                "resource_provider_generation": has["generation"],
            }
            self.client.send_request("PUT", f"/resource_providers/{uuid}/aggregates", body)
            self._copy = {}
            return
        if wanted["traits"] != has["traits"]:
            has["generation"] = self.client.set_traits(uuid, frozenset(wanted["traits"]), has["generation"])
            has["traits"] = wanted["traits"]

    def delete_service(self):
        """Delete the service, as `openstack compute service delete` does. The allocations of its guests were
        deleted before.
        """
        records = {record.uuid: record for record in self.client.providers_in_tree(self.uuid)}

        def depth(uuid):
            parent = records[uuid].parent_uuid
            return 0 if parent is None else 1 + depth(parent)

        for uuid in sorted(records, key=depth, reverse=True):
            try:
                self.client.delete_provider(uuid)
            except NotFoundError:
                continue
        self._copy = {}
