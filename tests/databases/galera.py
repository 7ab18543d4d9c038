"""Galera clusters for tests: three MariaDB nodes on loopback, which all accept writes."""

import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import ClassVar, Final, Self

import pymysql
from sqlalchemy.engine import make_url

from tests.databases.base import ServerMissing
from tests.databases.mariadb import MariaDB
from tests.ports import free_port

_PROVIDERS: Final = (Path("/usr/lib/galera/libgalera_smm.so"), Path("/usr/lib64/galera/libgalera_smm.so"))
_NODES: Final = 3

#: Silent nodes are expelled a few seconds sooner than by default, because tests are short.
_TIMES: Final = {
    "evs.keepalive_period": "PT0.5S",
    "evs.inactive_check_period": "PT0.25S",
    "evs.suspect_timeout": "PT2S",
    "evs.inactive_timeout": "PT4S",
    "evs.install_timeout": "PT4S",
}


def provider() -> Path:
    """Return the path of Galera's library.

    :raises ServerMissing: it is not installed.
    """
    for path in _PROVIDERS:
        if path.exists():
            return path
    raise ServerMissing("libgalera_smm.so is not installed: it is part of Debian's package galera-4")


class Node(MariaDB):
    """One node, which is ready when it is a member of the cluster."""

    kind: ClassVar[str] = "galera"

    def __init__(self, *, bootstraps: bool) -> None:
        super().__init__(durable=False)
        self.bootstraps = bootstraps
        self.group_port = free_port()
        self.port = free_port()
        self.cluster: Sequence[Node] = ()
        self._provider = provider()
        self._position = ""
        self._transfer_ports = (free_port(), free_port())

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def prepare(self, source: Path | None = None) -> None:
        """Create the folder, with a copy of the files of a stopped node or with new ones."""
        self.folder = self._make_folder()
        if source is None:
            self._initialise()
        else:
            self._run("cp", "--recursive", source, self.data)

    def start(self) -> None:
        if self._has_no_position():
            self._position = self._recovered_position()
        super().start()
        self._position = ""
        self.bootstraps = False  # a node that returns joins the running ones

    def remove(self) -> None:
        """Stop the node and remove its folder."""
        self.resume()
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def pause(self) -> None:
        """Stop the process with SIGSTOP, like a frozen host."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a frozen process."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def has_ended(self) -> bool:
        """Whether the process ended, cleanly or by a signal."""
        return self._process is None or self._process.poll() is not None

    def isolate(self, isolated: bool) -> None:
        """Cut the node off from the others, or reconnect it; clients always reach it."""
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SET GLOBAL wsrep_provider_options = 'gmcast.isolate={int(isolated)}'")

    def is_ready(self) -> bool:
        """Whether the node accepts reads and writes as a member of the cluster."""
        status = self.status()
        return status.get("wsrep_ready") == "ON" and status.get("wsrep_local_state") in ("2", "4")

    def status(self) -> dict[str, str]:
        """Return the node's state of the cluster, empty if it does not answer in time."""
        with (
            suppress(pymysql.err.MySQLError, OSError),
            self._connect(1) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SHOW STATUS LIKE 'wsrep%'")
            return dict(cursor.fetchall())
        return {}

    def _answers(self) -> bool:
        return self.is_ready()

    def _command(self) -> Sequence[str | Path]:
        return [*super()._command(), *self._clustered()]

    def _clustered(self) -> Sequence[str]:
        ist, sst = self._transfer_ports
        options = {
            "gmcast.listen_addr": f"tcp://127.0.0.1:{self.group_port}",
            "ist.recv_addr": f"127.0.0.1:{ist}",
            "gcache.size": "64M",
            **_TIMES,
        }
        others = ",".join(f"127.0.0.1:{node.group_port}" for node in self.cluster)
        return [
            "--wsrep-on=ON",
            f"--wsrep-provider={self._provider}",
            f"--wsrep-cluster-address=gcomm://{'' if self.bootstraps else others}",
            "--wsrep-cluster-name=placement",
            "--wsrep-node-address=127.0.0.1",
            f"--wsrep-node-incoming-address=127.0.0.1:{self.port}",
            f"--wsrep-sst-receive-address=127.0.0.1:{sst}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-provider-options={';'.join(f'{name}={value}' for name, value in options.items())}",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            *([f"--wsrep-start-position={self._position}"] if self._position else []),
        ]

    def _has_no_position(self) -> bool:
        """Whether the node was killed and has to recover its position."""
        state = self.data / "grastate.dat"
        return state.exists() and re.search(r"^seqno:\s+-1$", state.read_text(), re.MULTILINE) is not None

    def _recovered_position(self) -> str:
        done = subprocess.run(
            [*super()._command(), "--wsrep-on=ON", f"--wsrep-provider={self._provider}", "--wsrep-recover"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **self._as_user(),
        )
        found = re.findall(r"Recovered position:?\s+(\S+:\S+)", done.stdout)
        return found[-1] if found else ""


class Galera:
    """A cluster of three nodes in temporary folders."""

    def __init__(self) -> None:
        self.nodes = [Node(bootstraps=number == 0) for number in range(_NODES)]
        for node in self.nodes:
            node.cluster = self.nodes
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        first, *others = self.nodes
        with ExitStack() as stack:
            first.prepare()
            stack.callback(first.remove)
            first.start()
            first.stop()  # all nodes start with copies of its files, so no state transfer is needed
            first.folder.chmod(0o755)
            for node in others:
                node.prepare(first.data)
                stack.callback(node.remove)
            first.bootstraps = True
            for node in self.nodes:
                node.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def fresh_database(self) -> list[str]:
        """The URLs of a new database without any table, one for each node."""
        url = make_url(self.nodes[0].fresh_database())
        return [url.set(port=node.port).render_as_string(hide_password=False) for node in self.nodes]

    def ready(self) -> list[Node]:
        """Nodes that accept reads and writes."""
        return [node for node in self.nodes if node.is_ready()]
