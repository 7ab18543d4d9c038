"""Policy rules by which members of a project change and delete its reservations, and no others."""

from pathlib import Path

import pytest

from tests.placement.api.ext.windows import PATH, booked
from tests.placement.builders import make_provider
from tests.placement.moving_clock import after
from tests.placement.running import Admin, application

RULES = """
"placement:ext:reservations:update": "role:member and project_id:%(project_id)s"
"placement:ext:reservations:delete": "role:member and project_id:%(project_id)s"
"""


def caller(project: str, roles: str) -> dict[str, str]:
    return {"X-Auth-Token": "ann", "X-Project-Id": project, "X-Roles": roles}


@pytest.fixture
def admin(url: str, tmp_path: Path) -> Admin:
    file = tmp_path / "policy.yaml"
    file.write_text(RULES)
    return Admin(application(url, oslo_policy={"policy_file": str(file)}))


def test_members_change_reservations_of_their_project_only(admin: Admin) -> None:
    make_provider(admin, "cn", VCPU=8)
    window = f"{PATH}/{booked(admin, 4, 1, 2, project_id='web')}"
    for project, roles, refused in (("lab", "member,reader", 404), ("web", "reader", 403)):
        headers = caller(project, roles)
        body = {"generation": 1, "expires_at": after(9000)}
        assert admin("PUT", window, json=body, headers=headers).status_code == refused
        assert admin("DELETE", window, headers=headers).status_code == refused
    assert admin("GET", window).json["reservation"]["generation"] == 1
    owner = caller("web", "member,reader")
    changed = admin("PUT", window, json={"generation": 1, "expires_at": after(9000)}, headers=owner)
    assert (changed.status_code, changed.json["reservation"]["generation"]) == (200, 2)
    assert admin("DELETE", window, headers=owner).status_code == 204


def test_an_unknown_reservation_is_refused_like_one_of_another_project(admin: Admin) -> None:
    path = f"{PATH}/00000000-0000-0000-0000-000000000001"
    for roles, status in (("member", 404), ("reader", 403)):
        assert admin("DELETE", path, headers=caller("web", roles)).status_code == status
        answer = admin("PUT", path, json={"generation": 1, "expires_in": 60}, headers=caller("web", roles))
        assert answer.status_code == status
