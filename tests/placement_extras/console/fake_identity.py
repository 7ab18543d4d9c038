"""A fake Identity service with a few users. It only supports signing in and checking tokens."""

import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

USERS = {
    "placement": ("placement-secret", "service", ["service"]),
    "operator": ("operator-secret", "cloud", ["admin", "member", "reader"]),
    "reader": ("reader-secret", "research", ["reader"]),
}
"""Name to password, project and roles."""
CREDENTIAL = ("0123456789abcdef0123456789abcdef", "application-secret", "operator")


class FakeIdentity:
    """Answers ``/v3/auth/tokens``. While ``away`` is set it answers 503, and ``asked`` counts sign-ins.

    Each sign-in sets the event ``entered``, and waits for the event ``held``.
    """

    def __init__(self) -> None:
        self.tokens: dict[str, dict[str, Any]] = {}
        self.away = False
        self.entered, self.held = threading.Event(), threading.Event()
        self.held.set()
        self.asked = 0
        self.url = ""

    def __call__(self, environ: Any, start_response: Any) -> Any:
        return self._answer(Request(environ))(environ, start_response)

    def _answer(self, request: Request) -> Response:
        if self.away:
            return Response("", 503)
        if request.path.rstrip("/") == "/v3":
            link = [{"rel": "self", "href": f"{self.url}/v3/"}]
            return _json({"version": {"id": "v3.14", "status": "stable", "links": link}})
        if request.path != "/v3/auth/tokens":
            return _json({"error": {"code": 404, "message": "no", "title": "Not Found"}}, 404)
        if request.method == "POST":
            return self._sign_in(request.get_json()["auth"])
        if request.headers.get("X-Auth-Token") not in self.tokens:
            return _json({"error": {"code": 401, "message": "no", "title": "Unauthorized"}}, 401)
        token = self.tokens.get(request.headers.get("X-Subject-Token", ""))
        if token is None:
            return _json({"error": {"code": 404, "message": "no such token", "title": "Not Found"}}, 404)
        return _json({"token": token})

    def _endpoints(self) -> list[dict[str, str]]:
        faces = ("public", "internal", "admin")
        return [{"interface": face, "url": f"{self.url}/v3", "region": "here", "id": face} for face in faces]

    def _sign_in(self, auth: dict[str, Any]) -> Response:
        identity = auth["identity"]
        if identity["methods"] == ["application_credential"]:
            given = identity["application_credential"]
            if given["id"] != CREDENTIAL[0]:
                return _json({"error": {"code": 404, "message": "none", "title": "Not Found"}}, 404)
            name = CREDENTIAL[2] if (given["id"], given["secret"]) == CREDENTIAL[:2] else ""
        else:
            user = identity["password"]["user"]
            name = user["name"] if user["password"] == USERS.get(user["name"], ("",))[0] else ""
        self.asked += name != "placement"
        self.entered.set()
        self.held.wait(10)
        if not name:
            return _json({"error": {"code": 401, "message": "no", "title": "Unauthorized"}}, 401)
        _, project, _ = USERS[name]
        scope = auth.get("scope", {}).get("project", {})
        if scope.get("name", project) != project:
            return _json({"error": {"code": 401, "message": "no", "title": "Unauthorized"}}, 401)
        token = uuid.uuid4().hex
        self.accept(token, name, identity["methods"])
        return _json({"token": self.tokens[token]}, 201, {"X-Subject-Token": token})

    def accept(self, token: str, name: str, methods: Sequence[str] = ("password",)) -> None:
        """Accept a token of a user from now on."""
        _, project, roles = USERS[name]
        now = datetime.now(UTC)
        self.tokens[token] = {
            "methods": [*methods],
            "user": {"id": f"{name}-id", "name": name, "domain": {"id": "default", "name": "Default"}},
            "project": {"id": project, "name": project, "domain": {"id": "default", "name": "Default"}},
            "roles": [{"id": role, "name": role} for role in roles],
            "issued_at": now.isoformat().replace("+00:00", "Z"),
            "expires_at": (now + timedelta(hours=1)).isoformat().replace("+00:00", "Z"),
            "catalog": [{"type": "identity", "name": "keystone", "id": "x", "endpoints": self._endpoints()}],
            "audit_ids": ["x"],
        }


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(body), status, headers, mimetype="application/json")


@contextmanager
def serving() -> Iterator[FakeIdentity]:
    identity = FakeIdentity()
    server = make_server("127.0.0.1", 0, identity, threaded=True)
    identity.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield identity
    server.shutdown()
    server.server_close()
