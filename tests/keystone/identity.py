"""Projects, users, roles and tokens of a Keystone, by its REST API."""

import uuid
from dataclasses import dataclass
from typing import Any, Final

import requests

LIFETIME: Final = "X-Test-Lifetime"
"""Header with the lifetime of a token in seconds; the server of these tests reads it."""

_DOMAIN: Final = {"id": "default"}
_SECONDS: Final = 60.0


ADMIN_PASSWORD: Final = "bootstrap"
REGION: Final = "RegionOne"
INTERFACES: Final = ("admin", "internal", "public")


@dataclass(frozen=True)
class Caller:
    """A user with a role in a project or in the whole system. The password is the name with `-secret`."""

    name: str
    role: str
    project: str | None = None

    @property
    def password(self) -> str:
        return f"{self.name}-secret"


PLACEMENT: Final = Caller("placement", "service", "service")
"""The user of the service itself."""

CALLERS: Final = {
    "admin": Caller("a-admin", "admin", "cloud"),
    "service": Caller("a-service", "service", "service"),
    "member": Caller("a-member", "member", "cloud"),
    "reader": Caller("a-reader", "reader", "cloud"),
    "reader of another project": Caller("a-stranger", "reader", "other"),
    "system admin": Caller("a-system-admin", "admin"),
    "system reader": Caller("a-system-reader", "reader"),
}
"""Users that send requests in tests."""


class Identity:
    """Requests to ``url``, which ends with ``/v3``, as the first administrator where one is needed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._own: str | None = None

    def populate(self) -> None:
        """Create all users of the tests."""
        self.user(PLACEMENT)
        for caller in CALLERS.values():
            self.user(caller)

    # projects, users and services

    def project(self, name: str) -> str:
        """Return the id of a project, which is created if it is missing."""
        found = self._ask("GET", f"/projects?name={name}")["projects"]
        if not found:
            body = {"project": {"name": name, "domain_id": "default"}}
            found = [self._ask("POST", "/projects", body)["project"]]
        return str(found[0]["id"])

    def user(self, caller: Caller) -> None:
        """Create a user with its role."""
        body = {"user": {"name": caller.name, "password": caller.password, "domain_id": "default"}}
        user = self._ask("POST", "/users", body)["user"]["id"]
        (role,) = self._ask("GET", f"/roles?name={caller.role}")["roles"]
        of = "/system" if caller.project is None else f"/projects/{self.project(caller.project)}"
        self._ask("PUT", f"{of}/users/{user}/roles/{role['id']}")

    def change_password(self, caller: Caller, password: str) -> None:
        """Change the password of a user; its tokens become void."""
        self._ask("PATCH", f"/users/{self.user_id(caller)}", {"user": {"password": password}})

    def service(self, name: str, kind: str, url: str) -> None:
        """Create an entry of the catalog with its endpoints; it replaces an entry of the same kind."""
        for service in self._ask("GET", f"/services?type={kind}")["services"]:
            self._ask("DELETE", f"/services/{service['id']}")
        made = self._ask("POST", "/services", {"service": {"name": name, "type": kind}})["service"]["id"]
        for interface in INTERFACES:
            body = {"service_id": made, "interface": interface, "url": url, "region_id": REGION}
            self._ask("POST", "/endpoints", {"endpoint": body})

    # tokens

    def token(self, caller: Caller, seconds: int = 3600) -> str:
        """Return a token of a user for its role, which expires after ``seconds``."""
        return self._password(caller.name, caller.password, caller.project, seconds)

    def restricted_token(self, caller: Caller, *rules: tuple[str, str, str]) -> str:
        """Return a token of an application credential that is limited to ``(service, method, path)``."""
        keys = ("service", "method", "path")
        secret = self.application_credential(
            caller, access_rules=[dict(zip(keys, rule, strict=True)) for rule in rules]
        )
        identity = {"methods": ["application_credential"], "application_credential": secret}
        return self._issue({"identity": identity})

    def application_credential(self, caller: Caller, **limits: Any) -> dict[str, str]:
        """Create an application credential of a user; return its ``id`` and ``secret``."""
        credential = {"name": f"of-{caller.name}-{uuid.uuid4()}", **limits}
        own = {"X-Auth-Token": self.token(caller)}
        path = f"/users/{self.user_id(caller)}/application_credentials"
        made = self._ask("POST", path, {"application_credential": credential}, own)["application_credential"]
        return {"id": made["id"], "secret": made["secret"]}

    def revoke(self, token: str) -> None:
        """Revoke a token."""
        self._ask("DELETE", "/auth/tokens", headers={"X-Subject-Token": token})

    def _issue(self, auth: dict[str, Any], seconds: int = 3600) -> str:
        url, headers = f"{self._url}/auth/tokens", {LIFETIME: str(seconds)}
        answer = requests.post(url, json={"auth": auth}, headers=headers, timeout=_SECONDS)
        assert answer.status_code == 201, answer.text
        return answer.headers["X-Subject-Token"]

    def _password(self, name: str, password: str, project: str | None, seconds: int = 3600) -> str:
        who = {"name": name, "password": password, "domain": _DOMAIN}
        auth: dict[str, Any] = {"identity": {"methods": ["password"], "password": {"user": who}}}
        auth["scope"] = (
            {"project": {"name": project, "domain": _DOMAIN}} if project else {"system": {"all": True}}
        )
        return self._issue(auth, seconds)

    def user_id(self, caller: Caller) -> str:
        """Return the id of a user."""
        (user,) = self._ask("GET", f"/users?name={caller.name}")["users"]
        return str(user["id"])

    def _ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        if self._own is None:
            self._own = self._password("admin", ADMIN_PASSWORD, "admin")
        sent = {"X-Auth-Token": self._own, **(headers or {})}
        answer = requests.request(method, self._url + path, json=body, headers=sent, timeout=_SECONDS)
        assert answer.ok, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None
