"""Pairs of PostgreSQL servers for tests: a primary, and a standby that confirms each commit."""

import shutil
import signal
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg
from sqlalchemy.engine import make_url

from tests.databases.postgresql import OWNER, PostgreSQL
from tests.databases.process import program
from tests.ports import free_port
from tests.waits import wait_for


class Member(PostgreSQL):
    """One of the two servers, as primary or as standby."""

    def __init__(self) -> None:
        super().__init__(durable=False)
        self.port = free_port()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def prepare(self, source: "Member | None" = None) -> None:
        """Create the folder, with new data or as a copy of the running server that this one follows."""
        self.folder = self._make_folder()
        if source is None:
            self._initialise()
            with (self.data / "postgresql.conf").open("a") as conf:
                conf.write("wal_log_hints = on\nwal_keep_size = '256MB'\nhot_standby = on\n")
                conf.write("synchronous_standby_names = '*'\nsynchronous_commit = on\n")
        else:
            self._run(
                program("pg_basebackup", "postgresql", folders=self._folders),
                f"--pgdata={self.data}",
                f"--dbname={source.address}",
                "--write-recovery-conf",
                "--checkpoint=fast",
                "--no-sync",
            )

    def _command(self) -> Sequence[str | Path]:
        return [*super()._command(), "--full_page_writes=on"]  # pg_rewind needs them

    @property
    def address(self) -> str:
        """Connection string for the other server and for tools."""
        return f"host=127.0.0.1 port={self.port} user={OWNER} dbname=postgres"

    def follow(self, primary: "Member") -> None:
        """Return as the standby of the promoted server, without the commits that only this server had."""
        with primary.connected() as connection:
            connection.execute("CHECKPOINT")  # its files do not record the promotion before that
        self._run(
            program("pg_rewind", "postgresql", folders=self._folders),
            f"--target-pgdata={self.data}",
            f"--source-server={primary.address}",
            "--write-recovery-conf",
            "--no-sync",
        )
        self.start()

    def promote(self) -> None:
        """Become the primary, and wait until it accepts writes."""
        with self.connected() as connection:
            connection.execute("SELECT pg_promote(true, 60)")

    def pause(self) -> None:
        """Stop all its processes with SIGSTOP, like a frozen host."""
        self._signal_all(signal.SIGSTOP)

    def kill(self) -> None:
        """Kill all its processes, frozen ones too, like a power cut."""
        self._signal_all(signal.SIGKILL)
        super().kill()

    def _signal_all(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(psutil.NoSuchProcess):
                server = psutil.Process(self._process.pid)
                for each in (server, *server.children()):
                    with suppress(psutil.NoSuchProcess):
                        each.send_signal(number)

    def remove(self) -> None:
        """Stop the server and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def connected(self) -> psycopg.Connection[Any]:
        """Connect to it in either role."""
        return psycopg.connect(self.address, autocommit=True, connect_timeout=2)


class StandbyPair:
    """A primary and its synchronous standby, which can swap roles."""

    def __init__(self) -> None:
        self.primary, self.standby = Member(), Member()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.primary.prepare()
            stack.callback(self.primary.remove)
            self.primary.start()
            self.standby.prepare(self.primary)
            stack.callback(self.standby.remove)
            self.standby.start()
            self.wait_for_standby()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def fresh_database(self) -> str:
        """Create a database without tables; return its URL, which names both servers."""
        url = make_url(self.primary.fresh_database()).set(host=None, port=None)
        hosts = [f"127.0.0.1:{member.port}" for member in (self.primary, self.standby)]
        return url.update_query_dict({"host": hosts}).render_as_string(hide_password=False)

    def fail_over(self) -> None:
        """Promote the standby. The primary has to be down; :meth:`restore` brings it back."""
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def restore(self) -> None:
        """Bring the old primary back as the standby, and wait until commits go to both servers."""
        self.standby.follow(self.primary)
        self.wait_for_standby()

    def wait_for_standby(self) -> None:
        """Wait until the standby confirms commits."""
        query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        with self.primary.connected() as connection:
            wait_for(lambda: connection.execute(query).fetchone() == (1,), "the standby follows")
