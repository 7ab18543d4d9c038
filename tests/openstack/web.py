"""Web servers of the cloud's services."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import requests

from tests.openstack.process import Program

# The services parse the arguments of their process, so gunicorn gets none.
_SETTINGS: Final = """\
wsgi_app = "{application}"
bind = "127.0.0.1:{port}"
threads = 4
timeout = 0  # a machine may be busy
control_socket_disable = True
"""


def serving(
    name: str, application: str, port: int, folder: Path, programs: Path, environment: Mapping[str, str]
) -> Program:
    """A WSGI application under gunicorn, on this port and with its own folder."""
    folder.mkdir(exist_ok=True)
    (folder / "gunicorn.conf.py").write_text(_SETTINGS.format(application=application, port=port))
    url = f"http://127.0.0.1:{port}"
    return Program(name, [programs / "gunicorn"], folder, lambda: _answers(url), environment)


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=60).status_code < 500
    except requests.RequestException:
        return False
