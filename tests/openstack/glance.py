"""Glance on loopback, its images in files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.keystone import Keystone
from tests.openstack.identity import GLANCE, authtoken
from tests.openstack.process import run
from tests.openstack.web import serving
from tests.ports import free_port

_CONFIG: Final = """\
[DEFAULT]
enabled_backends = files:file
[glance_store]
default_backend = files
[files]
filesystem_store_datadir = {folder}/images
[os_glance_staging_store]
filesystem_store_datadir = {folder}/staging
[os_glance_tasks_store]
filesystem_store_datadir = {folder}/tasks
[database]
connection = sqlite:///{folder}/glance.sqlite
[paste_deploy]
flavor = keystone
config_file = {programs}/../etc/glance/glance-api-paste.ini
{authtoken}
"""


@contextmanager
def glance(folder: Path, programs: Path, keystone: Keystone) -> Iterator[str]:
    """The URL of the service."""
    text = _CONFIG.format(folder=folder, programs=programs, authtoken=authtoken(keystone, GLANCE, "image"))
    (folder / "glance-api.conf").write_text(text)
    for name in ("images", "staging", "tasks"):
        (folder / name).mkdir()
    run([programs / "glance-manage", "--config-file", folder / "glance-api.conf", "db", "sync"], folder)
    port = free_port()
    environment = {"OS_GLANCE_CONFIG_DIR": str(folder)}
    with serving("glance", "glance.wsgi.api:application", port, folder, programs, environment):
        yield f"http://127.0.0.1:{port}"
