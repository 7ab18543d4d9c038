"""The cost of checking a body: our marshmallow schemas beside two libraries for JSON schema.

    .venv/bin/pip install jsonschema fastjsonschema
    python -m benchmarks.validation

The body is that of ``PUT /allocations/{consumer}`` at 1.39. The table leaves out libraries that are not
installed. Times are CPU microseconds of one check: the smallest of ten repeats, in turns.
"""

import copy
import importlib
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from prettytable import PrettyTable, TableStyle

from placement.microversion import MAX
from placement.schemas import allocation

_REPEATS: Final = 10
_CHECKS: Final = 500
_UUID: Final = "^[0-9a-fA-F-]{36}$"

Check = Callable[[Any], Any]

_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "allocations": {
            "type": "object",
            "patternProperties": {
                _UUID: {
                    "type": "object",
                    "properties": {
                        "generation": {"type": "integer"},
                        "resources": {
                            "type": "object",
                            "minProperties": 1,
                            "patternProperties": {"^[0-9A-Z_]+$": {"type": "integer", "minimum": 1}},
                            "additionalProperties": False,
                        },
                    },
                    "required": ["resources"],
                    "additionalProperties": False,
                }
            },
            "additionalProperties": False,
        },
        "project_id": {"type": "string", "minLength": 1, "maxLength": 255},
        "user_id": {"type": "string", "minLength": 1, "maxLength": 255},
        "consumer_generation": {"type": ["integer", "null"]},
        "consumer_type": {"type": "string", "pattern": "^[A-Z0-9_]+$", "minLength": 1, "maxLength": 255},
    },
    "required": ["allocations", "project_id", "user_id", "consumer_generation", "consumer_type"],
    "additionalProperties": False,
}


def make_body(providers: int) -> dict[str, Any]:
    """Return allocations of a consumer on some providers."""
    return {
        "allocations": {
            f"00000000-0000-4000-8000-{number:012}": {"resources": {"VCPU": 2, "MEMORY_MB": 1024}}
            for number in range(providers)
        },
        "project_id": "project",
        "user_id": "user",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }


def find_checks() -> dict[str, Check]:
    """Return the checks by name; those of installed libraries."""
    checks: dict[str, Check] = {"marshmallow, `placement.schemas`": allocation.put_allocations(MAX).load}
    with suppress(ImportError):
        checks["jsonschema"] = importlib.import_module("jsonschema").Draft7Validator(_SCHEMA).validate
    with suppress(ImportError):
        # validators of this library write defaults into the body, so each check gets a copy in main()
        checks["fastjsonschema"] = importlib.import_module("fastjsonschema").compile(_SCHEMA)
    return checks


def measure_check(check: Check, body: Any) -> float:
    """Return the CPU microseconds of one check."""
    begin = time.process_time()
    for _ in range(_CHECKS):
        check(body)
    return (time.process_time() - begin) / _CHECKS * 1e6


def main() -> int:
    """Measure and print."""
    checks = find_checks()
    table = PrettyTable(["CPU us", *checks])
    table.set_style(TableStyle.MARKDOWN)
    table.align = "l"
    for providers in (1, 3, 10):
        body = make_body(providers)
        least = dict.fromkeys(checks, float("inf"))
        for _ in range(_REPEATS):
            for name, check in checks.items():
                least[name] = min(least[name], measure_check(check, copy.deepcopy(body)))
        table.add_row([f"{providers} providers", *(f"{value:.0f}" for value in least.values())])
    print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
