"""``compute-agent fleet key|sign|show``: what an operator does with the settings of a fleet."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from compute_agent import conf as agent_conf
from compute_agent.cmd.base import Commands, ShowOne, columns
from compute_agent.files import write_durably
from compute_agent.fleet import revision
from compute_agent.fleet.configuration import revision_problems
from compute_agent.fleet.revision import MAX_BYTES, FleetError
from compute_agent.model.messages import require_cryptography


class _SigningCommand(ShowOne):
    """A command that makes signatures or checks them, for which an extra is needed; its help needs none."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        """:raises ConfigError: the extra is not installed."""
        require_cryptography(f"compute-agent {self.cmd_name}")
        return super().run(parsed_args)


class FleetKey(_SigningCommand):
    """Make a private key for signing, unless it is there, and show the public key for [fleet] public_keys."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the file."""
        parser = super().get_parser(prog_name)
        parser.add_argument("file", type=Path, help="file of the private key (PEM); made if there is none")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Make it, or read it."""
        from compute_agent.fleet import signature  # needs the extra, here and below

        path: Path = parsed_args.file
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            private = path.read_bytes()
        else:
            private = signature.new_key()
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(private)
                    file.flush()
                    os.fsync(descriptor)
            except BaseException:
                path.unlink()  # a part of one would be taken for the key
                raise
        return columns({"file": str(path), "public_key": signature.public_key(private)})


class FleetSign(_SigningCommand):
    """Sign settings for the hosts of a group, which take them up when their source has the file.

    Refused is what every host would refuse; what does not fit one host, that host refuses.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add what is signed, and where it goes."""
        parser = super().get_parser(prog_name)
        parser.add_argument("settings", type=Path, help="ini file")
        parser.add_argument("--key", type=Path, required=True, help="file of the private key")
        parser.add_argument("--group", required=True, help="group of hosts")
        parser.add_argument(
            "--to", type=Path, required=True, metavar="FOLDER", help="folder that gets GROUP.conf"
        )
        parser.add_argument(
            "--generation",
            type=int,
            help="number of this revision, larger than those before; by default one more than that of the"
            " file that is there, or 1",
        )
        parser.add_argument(
            "--days", type=float, help="days in which hosts may take it up; by default for ever"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Check, sign, and put it in its place."""
        from compute_agent.fleet import signature

        settings = parsed_args.settings.read_bytes()
        _check(parsed_args.settings)
        private = parsed_args.key.read_bytes()
        target: Path = parsed_args.to / f"{parsed_args.group}.conf"
        days = parsed_args.days
        expires = None if days is None else datetime.now(UTC) + timedelta(days=days)
        generation = parsed_args.generation or _next_generation(target, private)
        content = signature.sign_revision(
            revision.write(settings, parsed_args.group, generation, expires), private
        )
        made = signature.read(content, [signature.public_key(private)])
        write_durably(target, content, 0o644)
        return columns({"file": str(target), **_document(made)})


class FleetShow(_SigningCommand):
    """Show of which group and generation a signed file is, if one of the keys signed it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the file and the keys."""
        parser = super().get_parser(prog_name)
        parser.add_argument("file", type=Path)
        parser.add_argument(
            "--public-key", action="append", metavar="KEY", help="by default [fleet] public_keys"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read it."""
        from compute_agent.fleet import signature

        keys = parsed_args.public_key or self.load_own_conf().fleet.public_keys
        with parsed_args.file.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        return columns(_document(signature.read(content, keys)))


def _document(shown: revision.FleetRevision) -> dict[str, Any]:
    expires = "" if shown.expires is None else shown.expires.isoformat()
    return {"group": shown.group, "generation": shown.generation, "expires": expires}


def _check(settings: Path) -> None:
    """:raises FleetError: naming what no host takes.

    :raises cfg.Error: it is no ini file, or a value is none of its option.
    """
    if found := revision_problems(settings, agent_conf.load([], [])):
        raise FleetError("; ".join(found))
    agent_conf.load([], [str(settings)])


def _next_generation(target: Path, private: bytes) -> int:
    """:raises FleetError: what is there is no revision that was signed with this key."""
    from compute_agent.fleet import signature

    try:
        present = target.read_bytes()
    except FileNotFoundError:
        return 1
    try:
        return signature.read(present, [signature.public_key(private)]).generation + 1
    except FleetError as error:
        raise FleetError(f"{target}: {error}; say --generation") from error


COMMANDS: Final[Commands] = {"fleet key": FleetKey, "fleet show": FleetShow, "fleet sign": FleetSign}
