"""Common parts of all clouds of a test run: packages, Keystone, a database server, images, a libvirtd."""

import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.reference import install_environment
from tests import databases
from tests.compute_agent.libvirtd import Libvirtd
from tests.databases import DatabaseServer
from tests.keystone import Keystone
from tests.openstack import config
from tests.openstack.identity import AGENT, GLANCE, NOVA, authtoken
from tests.openstack.process import run
from tests.openstack.web import serving
from tests.ports import free_port


class _Nothing(BaseHTTPRequestHandler):
    """Answers each request for a list with an empty list."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name = urlsplit(self.path).path.rstrip("/").rsplit("/", 1)[-1].removesuffix(".json")
        body = json.dumps({name.replace("-", "_"): []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def neutron() -> Iterator[str]:
    """The URL of the service."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Nothing)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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


_REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")


@dataclass(frozen=True)
class Ground:
    """The running parts."""

    folder: Path
    programs: Path
    keystone: Keystone
    databases: DatabaseServer
    images: str
    """The URL of Glance."""
    libvirtd: Any
    schemas: dict[str, Path]
    """Files with the empty tables of Nova's databases, by kind."""


@contextmanager
def ground() -> Iterator[Ground]:
    """Run all parts, in a folder that is removed at the end.

    :raises benchmarks.reference.ReferenceMissing: pip cannot install a package
    :raises tests.databases.ServerMissing: a program is not installed
    :raises tests.compute_agent.libvirtd.LibvirtMissing: this machine cannot run a libvirtd
    """
    programs = install_environment("nova-34.0.0", _REQUIREMENTS)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="cloud-", dir="/tmp"))  # UNIX sockets have short names
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        for name in ("keystone", "glance"):
            (folder / name).mkdir()
        server = stack.enter_context(databases.create("mariadb"))
        keystone = stack.enter_context(Keystone(folder / "keystone", threads=1))
        for caller in (NOVA, GLANCE, AGENT):
            keystone.identity.user(caller)
        images = stack.enter_context(glance(folder / "glance", programs, keystone))
        keystone.identity.service("glance", "image", images)
        keystone.identity.service("neutron", "network", stack.enter_context(neutron()))
        libvirtd = Libvirtd()
        stack.callback(libvirtd.stop)
        libvirtd.start()
        schemas = _schemas(folder, programs, server)
        yield Ground(folder, programs, keystone, server, images, libvirtd, schemas)


@contextmanager
def folder_of(ground: Ground, name: str) -> Iterator[Path]:
    """A folder for one cloud, removed with the context; names may be equal."""
    with tempfile.TemporaryDirectory(
        prefix=f"{name}-", dir=ground.folder, ignore_cleanup_errors=True
    ) as path:
        folder = Path(path)
        folder.chmod(0o755)
        yield folder


def _schemas(folder: Path, programs: Path, server: DatabaseServer) -> dict[str, Path]:
    """Return Nova's empty tables from a cache, because they take a minute to create."""
    pins = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()[:12]
    kept = {kind: programs.parent / f"{kind}-{pins}.sql" for kind in ("api", "main")}
    for kind, path in kept.items():
        if not path.exists():
            copy = path.with_name(f"{path.name}.{os.getpid()}")
            shutil.copyfile(_schema(kind, folder, programs, server), copy)
            copy.rename(path)
    own = {}
    for kind, path in kept.items():
        own[kind] = server.folder / path.name  # readable by the server's user
        shutil.copyfile(path, own[kind])
    return own


def _schema(kind: str, folder: Path, programs: Path, server: DatabaseServer) -> Path:
    url = server.fresh_database()
    settings = folder / f"{kind}-schema.conf"
    settings.write_text(config.databases(url, url))
    manage = [programs / "nova-manage", "--config-file", settings]
    run([*manage, *(["api_db", "sync"] if kind == "api" else ["db", "sync", "--local_cell"])], folder)
    made = server.backup(url)
    server.drop_database(url)
    return made
