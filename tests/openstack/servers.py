"""What users and operators ask Nova to do with servers; each returns when it is done."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from tests.keystone import Caller
from tests.openstack.client import ADMIN, Refused
from tests.openstack.cloud import Cloud, wait_for_cloud
from tests.openstack.process import CloudFailed

# A guest that finds nothing to boot runs, and needs no processor.
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
        """By uuid, also of those that are gone; and of aggregates and hosts."""
        # a provider is named as the hypervisor calls the machine
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
        """A new one; `hw_cpu_policy` and the like: the first underline of a name is a colon.

        :param disk: in GiB, which are written and read when such a guest is shelved.
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
        """Where the server is.

        :raises CloudFailed: it is in a state of error, so that it goes nowhere.
        """
        server = self._show(name)
        if server["status"] == "ERROR":
            raise CloudFailed(f"{name}: {server.get('fault', {}).get('message')}")
        return str(server["OS-EXT-SRV-ATTR:host"])

    def is_settled(self) -> bool:
        """Whether nothing happens to any server now."""
        servers = self._compute.get("/servers/detail?all_tenants=1")["servers"]
        return all(each["OS-EXT-STS:task_state"] is None for each in servers)

    # What is done to them

    def boot(self, name: str, flavor: str, host: str, *, until: str = "ACTIVE") -> None:
        """A new server on this host; :param until: ERROR where it cannot be."""
        self.start_to_boot(name, flavor, host)
        self.wait(name, until)

    def start_to_boot(
        self, name: str, flavor: str, host: str, caller: Caller = ADMIN, image: str = ""
    ) -> None:
        """The same, that is not waited for.

        :param caller: its user, whose project it is of.
        :param image: id of what it boots, if that is not the empty disk.
        """
        body = {
            "name": name,
            "imageRef": image or self._image,
            "flavorRef": self._flavors[flavor],
            "networks": "none",
            "host": host,
        }
        compute = self._compute.called_by(caller)
        self._uuids[name] = compute.send("POST", "/servers", {"server": body})["server"]["id"]
        self.names[self._uuids[name]] = name

    def act(self, name: str, action: str, body: Any = None, *, until: str) -> None:
        """An action of the compute API."""
        self.start_to(name, action, body)
        self.wait(name, until)

    def start_to(self, name: str, action: str, body: Any = None) -> None:
        """The same, that is not waited for."""
        self._compute.send("POST", f"/servers/{self._uuids[name]}/action", {action: body})

    def rebuild(self, name: str) -> None:
        """From the same image."""
        self.start_to_rebuild(name)
        self.wait(name, "ACTIVE")

    def start_to_rebuild(self, name: str) -> None:
        """The same, that is not waited for."""
        self.start_to(name, "rebuild", {"imageRef": self._image})

    def resize(self, name: str, flavor: str) -> None:
        """To another flavor; it is to be confirmed or reverted then."""
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
        """End it."""
        self._compute.send("DELETE", f"/servers/{self._uuids[name]}")
        wait_for_cloud(lambda: not self._exists(name), f"{name} is gone")

    def delete_all(self) -> None:
        """End all that there are."""
        names = [each["name"] for each in self._compute.get("/servers?all_tenants=1")["servers"]]
        for name in names:
            self._compute.send("DELETE", f"/servers/{self._uuids[name]}")
        for name in names:
            wait_for_cloud(lambda: not self._exists(name), f"{name} is gone")  # noqa: B023  # asked here and now

    def aggregate(self, name: str, host: str) -> None:
        """A new aggregate with this host."""
        body = {"aggregate": {"name": name, "availability_zone": None}}
        made = self._compute.send("POST", "/os-aggregates", body)["aggregate"]
        self.names[made["uuid"]] = name
        self._compute.send("POST", f"/os-aggregates/{made['id']}/action", {"add_host": {"host": host}})

    def force_down(self, host: str, is_down: bool) -> None:
        """Say of a `nova-compute` that it is dead, or that it is not."""
        self._service(host, {"forced_down": is_down})

    def disable(self, host: str, is_disabled: bool) -> None:
        """Have no new guests come to a host, or have them come again."""
        self._service(host, {"status": "disabled" if is_disabled else "enabled"})

    def wait(self, name: str, status: str) -> None:
        """Return when the server is so, and nothing happens to it.

        :raises CloudFailed: it comes to be in another state of error, with what Nova says of it.
        """

        def is_so() -> bool:
            server = self._show(name)
            if server["status"] == "ERROR" != status:
                raise CloudFailed(f"{name}: {server.get('fault', {}).get('message')}")
            return server["status"] == status and server["OS-EXT-STS:task_state"] is None

        wait_for_cloud(is_so, f"{name} is {status}")

    def _service(self, host: str, body: Any) -> None:
        """Change what Nova has written of a `nova-compute`."""
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
        """The id of a new image that is a raw disk of this content."""
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
