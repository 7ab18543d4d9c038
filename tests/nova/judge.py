"""Nova's queries to Placement for flavors and images; runs in Nova's environment.

Each line of the standard input is a case: a flavor in the format of ``POST /ext/v1/claims``, and the rules of
its translation. Each line of the output is Nova's result: a query with its fallback, or the name of the error
that refuses the guest.
"""

import itertools
import json
import logging
import os
import sys
from typing import Any, Final
from unittest import mock

_ID: Final = "5f2a1f3c-6a55-4e8a-9a43-0d1c0f0a0b0c"
_OWNER_SINCE: Final = 73


class _Context:
    """Context of an administrator, which passes every policy check."""

    def can(self, *rule: Any, **target: Any) -> bool:
        return True


def _checked(case: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Check a flavor, image and PCI devices like Nova's API; return Nova's objects."""
    from nova import objects
    from nova.compute import api
    from nova.pci import request as pci_request
    from nova.virt import hardware

    flavor, image = _given(case["flavor"])
    volume = objects.BlockDeviceMapping(destination_type="volume", volume_size=None)
    root = volume if case["flavor"].get("is_volume_backed") else None
    api.API._validate_flavor_image_nostatus(_Context(), image, flavor, root)
    meta = api._get_image_meta_obj(image)
    hardware.numa_get_constraints(flavor, meta)
    ids = (f"00000000-0000-0000-0000-{number:012}" for number in itertools.count())  # reproducible
    with mock.patch("oslo_utils.uuidutils.generate_uuid", side_effect=ids):
        devices = pci_request.get_pci_requests_from_flavor(flavor)
    if flavor.extra_specs.get("accel:device_profile"):
        raise LookupError("there is no Cyborg")
    return flavor, meta, devices


def _given(said: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Convert a case to a flavor of Nova's database and an image of Glance."""
    from nova import objects

    flavor = objects.Flavor(
        name="flavor",
        flavorid="flavor",
        vcpus=said["vcpus"],
        memory_mb=said["ram"],
        root_gb=said.get("disk", 0),
        ephemeral_gb=said.get("ephemeral", 0),
        swap=said.get("swap", 0),
        extra_specs=said.get("extra_specs", {}),
    )
    image = {"id": _ID, "name": "image", "status": "active", "disk_format": "", "properties": {}}
    return flavor, {**image, **said.get("image", {})}


def _wanted(case: dict[str, Any], flavor: Any, image: Any, devices: Any) -> Any:
    """Build the request spec that a scheduler gets."""
    from nova import objects

    spec = objects.RequestSpec(
        flavor=flavor,
        image=image,
        is_bfv=case["flavor"].get("is_volume_backed", False),
        availability_zone=None,
        requested_networks=objects.NetworkRequestList(objects=[]),
        requested_resources=[],
        pci_requests=devices,
    )
    spec.generate_request_groups_from_pci_requests()
    spec.request_level_params = objects.RequestLevelParams(
        root_required=set(), root_forbidden=set(), same_subtree=[]
    )
    return spec


def _asked(case: dict[str, Any], spec: Any) -> dict[str, Any]:
    """Return the query that a scheduler sends."""
    from nova.scheduler import request_filter, utils

    version = _OWNER_SINCE if case["rules"].get("require_owner_nova") else 0
    with mock.patch("nova.objects.service.get_minimum_version_all_cells", return_value=version):
        request_filter.process_reqspec(_Context(), spec)
    found = utils.resources_from_request_spec(_Context(), spec, None)
    fallback = None
    if found.cpu_pinning_requested:
        fallback = utils.resources_from_request_spec(_Context(), spec, None, enable_pinning_translate=False)
    return {"query": found.to_querystring(), "fallback": fallback and fallback.to_querystring()}


def _verdict(case: dict[str, Any]) -> dict[str, Any]:
    """Return Nova's result for a case. Any error of Nova about the flavor refuses the guest."""
    try:
        checked = _checked(case)
    except Exception as error:
        return {"refused": type(error).__name__}
    spec = _wanted(case, *checked)
    try:
        return _asked(case, spec)
    except Exception as error:
        return {"refused": type(error).__name__}


def main() -> None:
    """Judge the cases of the standard input."""
    import nova.conf
    from nova import objects
    from nova.pci import request as pci_request

    logging.disable()
    objects.register_all()
    conf = nova.conf.CONF
    conf([], project="nova", default_config_files=[])
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Nova prints to the other one
    for line in sys.stdin:
        case = json.loads(line)
        for name in ("query_placement_for_image_type_support", "image_metadata_prefilter"):
            conf.set_override(name, case["rules"].get(name, False), "scheduler")
        aliases = case["rules"].get("pci_alias", [])
        conf.set_override("alias", [json.dumps(each) for each in aliases], "pci")
        conf.set_override("pci_in_placement", bool(aliases), "filter_scheduler")
        pci_request.get_alias_from_config.cache_clear()
        print(json.dumps(_verdict(case)), file=output)
    output.flush()


if __name__ == "__main__":
    main()
