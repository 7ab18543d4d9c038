"""Runs a console where visitors have to sign in, and visitors that keep cookies and fill in forms."""

import re
from pathlib import Path
from typing import Any

from werkzeug.test import Client

from placement.api.middleware import build_application
from placement.conf import new_config
from placement_extras.console.page_request import COOKIE

SIGN_IN = "/console/sign-in"
HOST = "cloud.example.org"

AUTHTOKEN = """
[keystone_authtoken]
auth_type = password
service_type = placement
auth_url = {url}/v3
www_authenticate_uri = {url}/v3
username = placement
password = placement-secret
project_name = service
user_domain_name = Default
project_domain_name = Default
token_cache_time = -1
"""


def service(authtoken: str, file: Path, folder: Path) -> Any:
    """The service on this SQLite database, with tokens checked as these sections of the configuration say."""
    config = folder / "placement.conf"
    config.write_text(
        "[api]\nauth_strategy = keystone\n[console]\nenabled = true\n"
        f"[placement_database]\nconnection = sqlite:///{file}\n{authtoken}"
    )
    conf = new_config(config_files=[str(config)])
    return build_application(conf)


class Browser(Client):
    """A client that keeps cookies and fills in forms, as a browser does."""

    def open(self, *args: Any, **options: Any) -> Any:
        return super().open(*args, **{"base_url": f"https://{HOST}", **options})

    @property
    def secret(self) -> str | None:
        cookie = self.get_cookie(COOKIE, domain=HOST)
        return None if cookie is None else cookie.value

    def take(self, secret: str | None) -> None:
        assert secret is not None
        self.set_cookie(COOKIE, secret, domain=HOST)

    def form(self, path: str = SIGN_IN) -> str:
        found = re.search(r'name="mark" value="(\w+)"', self.get(path).text)
        assert found
        return found[1]

    def sign_in(self, fields: dict[str, str], path: str = SIGN_IN, **options: Any) -> Any:
        return self.post(path, data={"mark": self.form(path), **fields}, **options)
