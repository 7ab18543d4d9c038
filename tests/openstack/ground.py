"""Common parts of all clouds of a test run: packages, Keystone, a database server, images, a libvirtd."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.reference import environment
from tests import databases
from tests.compute_agent.libvirtd import Libvirtd
from tests.databases import DatabaseServer
from tests.keystone import Keystone
from tests.openstack import config
from tests.openstack.glance import glance
from tests.openstack.identity import AGENT, GLANCE, NOVA
from tests.openstack.neutron import neutron
from tests.openstack.process import run

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
    programs = environment("nova-34.0.0", _REQUIREMENTS)
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
