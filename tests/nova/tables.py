"""Cases from the flavors and images of Nova's unit tests; runs in Nova's environment.

The module runs Nova's tests and prints the arguments of functions that decide about flavors, one case a line.
The results of the tests do not matter, because the judge asks Nova again for all cases.
"""

import functools
import json
import logging
import os
import sys
import unittest
from collections.abc import Callable
from typing import Any, Final

_TESTS: Final = (
    "nova.tests.unit.virt.test_hardware",
    "nova.tests.unit.scheduler.test_utils",
    "nova.tests.unit.scheduler.test_request_filter",
)
_DECIDING: Final = ("get_", "numa_get_constraints", "_get_")
_BYTES: Final = 4096
"""Maximum length of a case, because some tests have a guest with very many devices."""

_seen: dict[str, None] = {}


def _note(arguments: dict[str, Any]) -> None:
    """Keep a flavor with its image, if a request body can express them."""
    from nova import objects

    spec = next((each for each in arguments.values() if isinstance(each, objects.RequestSpec)), None)
    flavor = next((each for each in arguments.values() if isinstance(each, objects.Flavor)), None)
    image = next((each for each in arguments.values() if isinstance(each, objects.ImageMeta)), None)
    bfv = False
    if spec is not None:
        flavor = spec.flavor if "flavor" in spec else flavor
        image = spec.image if "image" in spec else None
        bfv = bool("is_bfv" in spec and spec.is_bfv)
    if flavor is None:
        return
    said = {
        "vcpus": _of(flavor, "vcpus", 1),
        "ram": _of(flavor, "memory_mb", 512),
        "disk": _of(flavor, "root_gb", 0),
        "ephemeral": _of(flavor, "ephemeral_gb", 0),
        "swap": _of(flavor, "swap", 0),
        "extra_specs": {str(name): str(value) for name, value in _of(flavor, "extra_specs", {}).items()},
        "image": {"properties": _properties(image.properties) if image and "properties" in image else {}},
        "is_volume_backed": bfv,
    }
    line = json.dumps({"flavor": said, "rules": {}})
    if said["vcpus"] > 0 and len(line) < _BYTES:
        _seen[line] = None


def _of(flavor: Any, name: str, default: Any) -> Any:
    return getattr(flavor, name) if name in flavor else default


def _properties(said: Any) -> dict[str, str]:
    """Convert image properties to Glance's format."""
    found: dict[str, str] = {}
    for name in said.obj_fields:
        if name not in said:
            continue
        value = getattr(said, name)
        if name == "traits_required":
            found |= {f"trait:{trait}": "required" for trait in value}
        elif name == "hw_numa_cpus":
            found |= {f"{name}.{node}": ",".join(map(str, sorted(each))) for node, each in enumerate(value)}
        elif name == "hw_numa_mem":
            found |= {f"{name}.{node}": str(each) for node, each in enumerate(value)}
        elif not isinstance(value, list):
            found[name] = str(value)
    return found


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        _note({**dict(enumerate(args)), **kwargs})  # type: ignore[dict-item]  # only the values matter
        return function(*args, **kwargs)

    return watched


def main() -> None:
    """Run Nova's tests and print their cases."""
    from nova.scheduler import utils
    from nova.virt import hardware

    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Nova prints to the other one
    for name, function in list(vars(hardware).items()):
        if name.startswith(_DECIDING) and callable(function):
            setattr(hardware, name, _watched(function))
    request = utils.ResourceRequest
    request.from_request_spec = staticmethod(_watched(request.from_request_spec))
    unittest.TextTestRunner(stream=sys.stderr).run(unittest.defaultTestLoader.loadTestsFromNames(_TESTS))
    logging.disable()
    for line in _seen:
        print(line, file=output)
    output.flush()


if __name__ == "__main__":
    main()
