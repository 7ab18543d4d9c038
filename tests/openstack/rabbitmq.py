"""A RabbitMQ for tests: one node on loopback, with an ``epmd`` of its own."""

import os
import pwd
import shutil
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self

from tests.databases import ServerMissing
from tests.databases.process import program
from tests.openstack.process import Program
from tests.ports import free_port

# The command on the PATH is a script for the system's node, with its folders.
_SERVER: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_LOOPBACK: Final = "127.0.0.1"


class RabbitMQ:
    """A node that knows the user `guest`.

    :raises tests.databases.ServerMissing: RabbitMQ is not installed (raised by the constructor)
    """

    def __init__(self, folder: Path) -> None:
        if not _SERVER.exists():
            raise ServerMissing(f"{_SERVER} is not there: it is part of Debian's package rabbitmq-server")
        self._epmd = program("epmd", "rabbitmq-server")
        self._folder = folder
        self._port = free_port()
        self.url = f"rabbit://guest:guest@{_LOOPBACK}:{self._port}/"
        self._running = ExitStack()

    def __enter__(self) -> Self:
        options = _unprivileged(self._folder)
        names = free_port()
        daemon = Program(
            "epmd",
            [self._epmd, "-address", _LOOPBACK, "-port", str(names)],
            self._folder,
            lambda: _listens(names),
            **options,
        )
        node = Program(
            "rabbitmq",
            [_SERVER],
            self._folder,
            lambda: _listens(self._port),
            self._environment(names),
            **options,
        )
        with ExitStack() as running:
            running.enter_context(daemon)
            running.enter_context(node)
            self._running = running.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _environment(self, names: int) -> dict[str, str]:
        folder = self._folder
        return {
            "HOME": str(folder),  # the folder of the cookie
            "ERL_EPMD_ADDRESS": _LOOPBACK,
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_NODENAME": "cloud@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": _LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "environment"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            # the program itself, not a script that would need a command to end it
            "RABBITMQ_ALLOW_INPUT": "yes",
            # one scheduler without busy waiting: the load is low
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}"
            " -noinput -start_epmd false +S 1:1 +sbwt none",
        }


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection((_LOOPBACK, port), timeout=5):
        return True
    return False


def _unprivileged(folder: Path) -> dict[str, Any]:
    """Return its user if the tests run as root, and make that user the folder's owner."""
    if os.geteuid() != 0:
        return {}
    try:
        user = pwd.getpwnam("rabbitmq")
    except KeyError as error:
        raise ServerMissing("RabbitMQ does not run as root, and there is no user rabbitmq") from error
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
