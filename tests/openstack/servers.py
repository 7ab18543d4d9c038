"""Actions of users and operators on servers; each returns when it is done."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from tests.keystone import Caller
from tests.openstack.client import ADMIN, Refused
from tests.openstack.cloud import Cloud, wait_for_cloud
from tests.openstack.process import CloudFailed

# A guest without a bootable disk runs without using a processor.
_EMPTY: Final = bytes(1 << 20)
MIB: Final = 64
"""The memory of a guest."""


class Servers:
    """The servers of a cloud, by name."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._compute = cloud.compute
        self._flavors: dict[str, str] = {}
        self._uuids: dict[str, str] = {}
        self.names: dict[str, str] = {}
        """Names by uuid of servers (also deleted ones), aggregates and hosts."""
        # a provider has the hypervisor's name of the machine
        for each in cloud.compute.get("/os-hypervisors/detail")["hypervisors"]:
            self.names[each["id"]] = each["service"]["host"]
        self._image = self.upload(_EMPTY)

    # What there is

    def flavor(
        self,
        name: str,
        vcpus: int = 1,
        memory: int = MIB,
        disk: int = 1,
        specs: Mapping[str, str] | None = None,
        **extra_specs: str,
    ) -> None:
        """Create a flavor.

        In names of extra specs such as `hw_cpu_policy`, the first underscore stands for a colon.

        :param disk: in GiB; shelving writes and reads all of it
        :param specs: more extra specs, with colons.
        """
        body = {"name": name, "vcpus": vcpus, "ram": memory, "disk": disk}
        made = self._compute.send("POST", "/flavors", {"flavor": body})["flavor"]["id"]
        if all_specs := {
            **{key.replace("_", ":", 1): value for key, value in extra_specs.items()},
            **(specs or {}),
        }:
            self._compute.send("POST", f"/flavors/{made}/os-extra_specs", {"extra_specs": all_specs})
        self._flavors[name] = made

    def uuid(self, name: str) -> str:
        return self._uuids[name]

    def host(self, name: str) -> str:
        """Return the host of the server.

        :raises CloudFailed: the server is in a state of error
        """
        server = self._show(name)
        if server["status"] == "ERROR":
            raise CloudFailed(f"{name}: {server.get('fault', {}).get('message')}")
        return str(server["OS-EXT-SRV-ATTR:host"])

    def is_settled(self) -> bool:
        """Whether no server has a running task."""
        servers = self._compute.get("/servers/detail?all_tenants=1")["servers"]
        return all(each["OS-EXT-STS:task_state"] is None for each in servers)

    # What is done to them

    def boot(self, name: str, flavor: str, host: str, *, until: str = "ACTIVE") -> None:
        """Create a server on this host, or where Nova likes if the host is empty.

        :param until: ERROR if it has to fail.
        """
        self.start_to_boot(name, flavor, host)
        self.wait(name, until)

    def start_to_boot(
        self, name: str, flavor: str, host: str, caller: Caller = ADMIN, image: str = ""
    ) -> None:
        """Ask for a server, without waiting.

        :param caller: the user; its project owns the server
        :param image: id of the image; the empty disk by default
        """
        body = {
            "name": name,
            "imageRef": image or self._image,
            "flavorRef": self._flavors[flavor],
            "networks": "none",
            **({"host": host} if host else {}),
        }
        compute = self._compute.called_by(caller)
        self._uuids[name] = compute.send("POST", "/servers", {"server": body})["server"]["id"]
        self.names[self._uuids[name]] = name

    def act(self, name: str, action: str, body: Any = None, *, until: str) -> None:
        """Call an action of the compute API and wait."""
        self.start_to(name, action, body)
        self.wait(name, until)

    def start_to(self, name: str, action: str, body: Any = None) -> None:
        """The same, that is not waited for."""
        self._compute.send("POST", f"/servers/{self._uuids[name]}/action", {action: body})

    def rebuild(self, name: str) -> None:
        """Rebuild from the same image."""
        self.start_to_rebuild(name)
        self.wait(name, "ACTIVE")

    def start_to_rebuild(self, name: str) -> None:
        """Ask for a rebuild from the same image, without waiting."""
        self.start_to(name, "rebuild", {"imageRef": self._image})

    def resize(self, name: str, flavor: str) -> None:
        """Resize to another flavor, to be confirmed or reverted afterwards."""
        self.start_to_resize(name, flavor)
        self.wait(name, "VERIFY_RESIZE")

    def confirm(self, *names: str) -> None:
        """Confirm what was resized or migrated; all at once."""
        for name in names:
            self.start_to(name, "confirmResize")
        for name in names:
            self.wait(name, "ACTIVE")

    def start_to_resize(self, name: str, flavor: str) -> None:
        """The same, that is not waited for."""
        self.start_to(name, "resize", {"flavorRef": self._flavors[flavor]})

    def delete(self, name: str) -> None:
        """Delete the server."""
        self._compute.send("DELETE", f"/servers/{self._uuids[name]}")
        wait_for_cloud(lambda: not self._exists(name), f"{name} is gone")

    def delete_all(self) -> None:
        """End all that there are."""
        names = [each["name"] for each in self._compute.get("/servers?all_tenants=1")["servers"]]
        for name in names:
            self._compute.send("DELETE", f"/servers/{self._uuids[name]}")
        for name in names:
            wait_for_cloud(lambda: not self._exists(name), f"{name} is gone")  # noqa: B023  # asked here and now

    def delete_flavors(self) -> None:
        """Delete the flavors, so that others may have their names."""
        for made in self._flavors.values():
            self._compute.send("DELETE", f"/flavors/{made}")
        self._flavors.clear()

    def aggregate(self, name: str, host: str) -> None:
        """Create an aggregate with this host."""
        body = {"aggregate": {"name": name, "availability_zone": None}}
        made = self._compute.send("POST", "/os-aggregates", body)["aggregate"]
        self.names[made["uuid"]] = name
        self._compute.send("POST", f"/os-aggregates/{made['id']}/action", {"add_host": {"host": host}})

    def force_down(self, host: str, is_down: bool) -> None:
        """Force a `nova-compute` down, or reset that."""
        self._service(host, {"forced_down": is_down})

    def disable(self, host: str, is_disabled: bool) -> None:
        """Disable or enable a host for new guests."""
        self._service(host, {"status": "disabled" if is_disabled else "enabled"})

    def wait(self, name: str, status: str) -> None:
        """Wait until the server has this status and no running task.

        :raises CloudFailed: it gets an error status; has Nova's message
        """

        def is_so() -> bool:
            server = self._show(name)
            if server["status"] == "ERROR" != status:
                raise CloudFailed(f"{name}: {server.get('fault', {}).get('message')}")
            return server["status"] == status and server["OS-EXT-STS:task_state"] is None

        wait_for_cloud(is_so, f"{name} is {status}", evidence=lambda: self._last_action(name))

    def _last_action(self, name: str) -> Any:
        """The last action on the server, with the results and errors of its steps."""
        path = f"/servers/{self._uuids[name]}/os-instance-actions"
        last = self._compute.get(path)["instanceActions"][0]
        return self._compute.get(f"{path}/{last['request_id']}")["instanceAction"]

    def _service(self, host: str, body: Any) -> None:
        """Change Nova's record of a `nova-compute`."""
        services = self._compute.get(f"/os-services?binary=nova-compute&host={host}")["services"]
        self._compute.send("PUT", f"/os-services/{services[0]['id']}", body)

    def _show(self, name: str) -> Any:
        return self._compute.get(f"/servers/{self._uuids[name]}")["server"]

    def _exists(self, name: str) -> bool:
        try:
            self._show(name)
        except Refused as error:
            if "itemNotFound" not in str(error):
                raise
            return False
        return True

    def upload(self, content: bytes) -> str:
        """Create an image, a raw disk with this content; return its id."""
        image = self._cloud.image
        body = {"name": f"disk-{uuid.uuid4()}", "disk_format": "raw", "container_format": "bare"}
        made = str(image.send("POST", "/v2/images", body)["id"])
        image.send(
            "PUT",
            f"/v2/images/{made}/file",
            data=content,
            headers={"Content-Type": "application/octet-stream"},
        )
        return made
