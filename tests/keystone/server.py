"""Keystone's processes: created with a new database, served by gunicorn, restarted on the same port."""

import base64
import hashlib
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Self

import psutil
import requests

from benchmarks.reference import install_environment
from tests.keystone.identity import ADMIN_PASSWORD, INTERFACES, LIFETIME, REGION, Identity
from tests.ports import free_port

_CONFIG: Final = "keystone.conf"
_REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")
_SECONDS: Final = 120.0
_VALIDATION: Final = "GET /v3/auth/tokens"

# Keystone reads the arguments of its process, so gunicorn gets none. Requests are logged before they are
# answered, so that a test with an answer can count them. A header sets the lifetime of a token.
_GUNICORN: Final = """\
import os

wsgi_app = "keystone.wsgi.api:application"
bind = "127.0.0.1:{port}"
threads = {threads}
timeout = 0  # a worker that was frozen is as good as before
control_socket_disable = True
keepalive = 75


def pre_request(worker, request):
    from keystone.conf import CONF

    asked = os.open("{folder}/asked", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(asked, f"{{request.method}} {{request.path}}\\n".encode())
    os.close(asked)
    if request.method == "POST" and request.path == "/v3/auth/tokens":
        seconds = dict(request.headers).get("{lifetime}", "3600")
        CONF.set_override("expiration", int(seconds), "token")
"""

_KEYSTONE: Final = """\
[database]
connection = sqlite:///{database}
[fernet_tokens]
key_repository = {folder}/keys
[fernet_receipts]
key_repository = {folder}/keys
[credential]
key_repository = {folder}/keys
[token]
provider = fernet
caching = false
[identity]
password_hash_rounds = 4
# Without it each token costs more than a second of a processor. What is revoked is so at once nevertheless.
[cache]
enabled = true
backend = dogpile.cache.memory
[revoke]
caching = false
"""


class KeystoneFailed(Exception):
    """A command of Keystone failed; the message ends with its output."""


class Keystone:
    """An Identity service with fernet tokens and the users in :data:`tests.keystone.identity.CALLERS`.

    :param threads: one, where several get tokens at once: SQLite refuses some of them otherwise.
    :raises benchmarks.reference.ReferenceMissing: it cannot be installed (when made).
    """

    def __init__(self, folder: Path, threads: int = 8) -> None:
        self._programs = install_environment("keystone-30.0.0", _REQUIREMENTS)
        self._folder = folder
        self._threads = threads
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}/v3"
        self.identity = Identity(self.url)

    def __enter__(self) -> Self:
        self._configure()
        kept = self._programs.parent / f"users-{_version()}.sqlite"
        if kept.exists():
            shutil.copyfile(kept, self._database)
            self._move_endpoints()
            self.start()
        else:
            self._begin(kept)
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start on the same port as before, and wait until the service answers."""
        log = self._folder / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._programs / "gunicorn"],
                cwd=self._folder,  # Keystone reads its configuration from the working directory
                env={**_environ(), "OS_KEYSTONE_CONFIG_FILES": str(self._folder / _CONFIG)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + _SECONDS
        while not _answers(self.url):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise KeystoneFailed(f"Keystone does not answer:\n{log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the service; connections are refused from then on."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the service within this context."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the service within this context: it accepts connections and does not answer."""
        assert self._process is not None
        master = psutil.Process(self._process.pid)
        processes = [master, *master.children()]
        for each in processes:
            each.suspend()
        try:
            yield
        finally:
            for each in processes:
                each.resume()

    def validations(self) -> int:
        """Return the number of tokens that were validated so far."""
        asked = (self._folder / "asked").read_text().splitlines()
        return sum(line.startswith(_VALIDATION) for line in asked)

    def _begin(self, kept: Path) -> None:
        """Create the database and keep a copy for later tests, because this can take a minute."""
        self._manage("db_sync")
        urls = [word for kind in INTERFACES for word in (f"--bootstrap-{kind}-url", self.url)]
        self._manage(
            "bootstrap", "--bootstrap-password", ADMIN_PASSWORD, "--bootstrap-region-id", REGION, *urls
        )
        self.start()
        try:
            self.identity.populate()
            copy = kept.with_name(f"{kept.name}.{os.getpid()}")
            shutil.copyfile(self._database, copy)
            copy.rename(kept)
        except BaseException:
            self.stop()
            raise

    def _move_endpoints(self) -> None:
        """Set the endpoints to the current port, before the start."""
        with closing(sqlite3.connect(self._database)) as database:
            service = "SELECT id FROM service WHERE type = 'identity'"
            database.execute(f"UPDATE endpoint SET url = ? WHERE service_id IN ({service})", (self.url,))
            database.commit()

    def _manage(self, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / "keystone-manage", "--config-file", self._folder / _CONFIG, *arguments],
            cwd=self._folder,
            env=_environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        if done.returncode:
            raise KeystoneFailed(f"keystone-manage {arguments[0]}:\n{done.stderr[-4000:]}")

    @property
    def _database(self) -> Path:
        return self._folder / "keystone.sqlite"

    def _configure(self) -> None:
        """Write the configuration of Keystone and its web server, with new keys."""
        (self._folder / _CONFIG).write_text(_KEYSTONE.format(folder=self._folder, database=self._database))
        settings = _GUNICORN.format(
            port=self._port, threads=self._threads, folder=self._folder, lifetime=LIFETIME.upper()
        )
        (self._folder / "gunicorn.conf.py").write_text(settings)
        keys = self._folder / "keys"
        keys.mkdir(mode=0o700)
        for name in ("0", "1"):
            (keys / name).write_bytes(base64.urlsafe_b64encode(os.urandom(32)))
            (keys / name).chmod(0o600)


def _version() -> str:
    """Return a hash of the sources that determine the content of a new database."""
    folder = Path(__file__).parent
    sources = [folder / "identity.py", folder / "server.py", _REQUIREMENTS]
    return hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()[:12]


def _environ() -> dict[str, str]:
    """Return the environment without variables that change Keystone's imports or configuration."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "OS_", "GUNICORN"))
    }


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.RequestException:
        return False
