"""Runs the core of the service in a process without extras: ``python -m tests.placement.core_alone URL``."""

import json
import sys
from importlib.metadata import EntryPoints
from typing import Any

import sqlalchemy as sa

from placement import extensions

# like an environment without the package: it is neither registered nor importable
extensions.entry_points = EntryPoints  # type: ignore[assignment, attr-defined]
sys.modules["placement_extras"] = None  # type: ignore[assignment]

from placement.cmd import manage  # noqa: E402  # after the removal of the extras
from placement.db import migration  # noqa: E402
from tests.placement.running import Admin, application  # noqa: E402

HOST = "4e8e5957-649f-477b-9e5b-f1f75b21c03c"
CONSUMER = "542df8ed-9be2-49b9-b4db-6d3183ff8ec8"
OWNER = {"project_id": "project", "user_id": "user"}


def answers(url: str) -> dict[str, Any]:
    """Send requests of all kinds; return the status of each answer, and the details of the refusals."""
    migration.upgrade_schema(url)
    admin = Admin(application(url))
    claim = {"consumer_uuid": CONSUMER, "consumer_generation": None, "consumer_type": "INSTANCE", **OWNER}
    flavor = {"flavor": {"vcpus": 1, "ram": 512}}
    asked = {
        "provider": ("POST", "/resource_providers", {"name": "cn1", "uuid": HOST}),
        "inventories": (
            "PUT",
            f"/resource_providers/{HOST}/inventories",
            {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}},
        ),
        "candidates": ("GET", "/allocation_candidates?resources=VCPU:1", None),
        "explanation": ("POST", "/ext/v1/explanations", {"query": "resources=VCPU:9"}),
        "claim": ("POST", "/ext/v1/claims", {"claims": [claim | {"query": "resources=VCPU:1"}]}),
        "reservation": (
            "POST",
            "/ext/v1/reservations",
            {"query": "resources=VCPU:2", "expires_in": 60, **OWNER},
        ),
        "allocations": ("GET", f"/allocations/{CONSUMER}", None),
        "flavor": ("POST", "/ext/v1/explanations", flavor),
        "no query": ("POST", "/ext/v1/explanations", {}),
        "capacity": ("POST", "/ext/v1/capacity", {"flavors": []}),
        "console": ("GET", "/console/", None),
    }
    found = {}
    for name, (method, path, body) in asked.items():
        answer = admin(method, path, **({} if body is None else {"json": body}))
        errors = (answer.json or {}).get("errors", [{}])
        found[name] = [answer.status_code, errors[0].get("detail", "")]
    engine = sa.create_engine(url)
    tables = sa.inspect(engine).get_table_names()
    engine.dispose()
    return found | {"commands": manage.build_parser().format_help(), "tables": tables}


if __name__ == "__main__":
    print(json.dumps(answers(sys.argv[1])))
