"""Projects, users, roles and tokens of a Keystone, by its REST API."""

import uuid
from dataclasses import dataclass
from typing import Any, Final

import requests

LIFETIME: Final = "X-Test-Lifetime"
"""The header that says how many seconds a token shall live; the server of these tests knows it."""

_DOMAIN: Final = {"id": "default"}
_SECONDS: Final = 60.0


ADMIN_PASSWORD: Final = "bootstrap"
REGION: Final = "RegionOne"
INTERFACES: Final = ("admin", "internal", "public")


@dataclass(frozen=True)
class Caller:
    """A user with a role in a project, or of the whole system; the password is the name and `-secret`."""

    name: str
    role: str
    project: str | None = None

    @property
    def password(self) -> str:
        return f"{self.name}-secret"


PLACEMENT: Final = Caller("placement", "service", "service")
"""The service itself."""

CALLERS: Final = {
    "admin": Caller("a-admin", "admin", "cloud"),
    "service": Caller("a-service", "service", "service"),
    "member": Caller("a-member", "member", "cloud"),
    "reader": Caller("a-reader", "reader", "cloud"),
    "reader of another project": Caller("a-stranger", "reader", "other"),
    "system admin": Caller("a-system-admin", "admin"),
    "system reader": Caller("a-system-reader", "reader"),
}
"""Who asks in tests."""


class Identity:
    """Requests to ``url`` (with ``/v3``), as the first administrator where it needs one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._own: str | None = None

    def populate(self) -> None:
        """Make everybody that tests know."""
        self.user(PLACEMENT)
        for caller in CALLERS.values():
            self.user(caller)

    # What there is

    def project(self, name: str) -> str:
        """The id of the project of that name, which is made if there is none."""
        found = self._ask("GET", f"/projects?name={name}")["projects"]
        if not found:
            body = {"project": {"name": name, "domain_id": "default"}}
            found = [self._ask("POST", "/projects", body)["project"]]
        return str(found[0]["id"])

    def user(self, caller: Caller) -> None:
        """A new user with this role."""
        body = {"user": {"name": caller.name, "password": caller.password, "domain_id": "default"}}
        user = self._ask("POST", "/users", body)["user"]["id"]
        (role,) = self._ask("GET", f"/roles?name={caller.role}")["roles"]
        of = "/system" if caller.project is None else f"/projects/{self.project(caller.project)}"
        self._ask("PUT", f"{of}/users/{user}/roles/{role['id']}")

    def change_password(self, caller: Caller, password: str) -> None:
        """Give the user another password; tokens from before are void."""
        self._ask("PATCH", f"/users/{self.user_id(caller)}", {"user": {"password": password}})

    def service(self, name: str, kind: str, url: str) -> None:
        """An entry of the catalog, with its endpoints, in the place of the one of this kind that is there."""
        for service in self._ask("GET", f"/services?type={kind}")["services"]:
            self._ask("DELETE", f"/services/{service['id']}")
        made = self._ask("POST", "/services", {"service": {"name": name, "type": kind}})["service"]["id"]
        for interface in INTERFACES:
            body = {"service_id": made, "interface": interface, "url": url, "region_id": REGION}
            self._ask("POST", "/endpoints", {"endpoint": body})

    # Tokens

    def token(self, caller: Caller, seconds: int = 3600) -> str:
        """A token of the user for what the role is for, which expires so soon."""
        return self._password(caller.name, caller.password, caller.project, seconds)

    def restricted_token(self, caller: Caller, *rules: tuple[str, str, str]) -> str:
        """A token of an application credential of the user, for ``(service, method, path)`` alone."""
        keys = ("service", "method", "path")
        secret = self.application_credential(
            caller, access_rules=[dict(zip(keys, rule, strict=True)) for rule in rules]
        )
        identity = {"methods": ["application_credential"], "application_credential": secret}
        return self._issue({"identity": identity})

    def application_credential(self, caller: Caller, **limits: Any) -> dict[str, str]:
        """The ``id`` and the ``secret`` of a new application credential of the user."""
        credential = {"name": f"of-{caller.name}-{uuid.uuid4()}", **limits}
        own = {"X-Auth-Token": self.token(caller)}
        path = f"/users/{self.user_id(caller)}/application_credentials"
        made = self._ask("POST", path, {"application_credential": credential}, own)["application_credential"]
        return {"id": made["id"], "secret": made["secret"]}

    def revoke(self, token: str) -> None:
        """Make the token void."""
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
        """By what services know the user."""
        (user,) = self._ask("GET", f"/users?name={caller.name}")["users"]
        return str(user["id"])

    def _ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        if self._own is None:
            self._own = self._password("admin", ADMIN_PASSWORD, "admin")
        sent = {"X-Auth-Token": self._own, **(headers or {})}
        answer = requests.request(method, self._url + path, json=body, headers=sent, timeout=_SECONDS)
        assert answer.ok, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None
