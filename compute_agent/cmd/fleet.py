"""Commands of a fleet's settings: ``compute-agent fleet key``, ``fleet sign`` and ``fleet show``."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from compute_agent import conf as agent_conf
from compute_agent.cmd.base import Commands, ShowOne, document_columns
from compute_agent.files import write_durably
from compute_agent.fleet import revision
from compute_agent.fleet.configuration import revision_problems
from compute_agent.fleet.revision import MAX_BYTES, FleetError
from compute_agent.model.messages import require_cryptography


class _SigningCommand(ShowOne):
    """Base class of commands that make or check signatures.

    Such commands need the package cryptography, which pip installs with the optional dependencies ``fleet``.
    The help texts of these commands do not need the package.
    """

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command.

        :raises ConfigError: the package cryptography is not installed.
        """
        require_cryptography(f"compute-agent {self.cmd_name}")
        return super().run(parsed_args)


class FleetKey(_SigningCommand):
    """Show the public key of a private key for signing. If the private key does not exist, make it."""

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "file",
            type=Path,
            help="file of the private key (PEM); the command makes a new key if the file does not exist",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Make the key, or read an existing key. Returns the names and values to print."""
        from compute_agent.fleet import signature  # needs the package cryptography, here and below

        path: Path = parsed_args.file
        try:
            # The file gets its mode when it is created, so no other user can ever read it. O_EXCL keeps an
            # existing key.
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
                path.unlink()  # otherwise the next call would take the incomplete file for the key
                raise
        return document_columns({"file": str(path), "public_key": signature.public_key(private)})


class FleetSign(_SigningCommand):
    """Sign settings for a group of hosts, and write them to the file GROUP.conf.

    A host applies the settings when this file is in the folder that [fleet] source of the host names.

    The command refuses settings that no host would accept. A host can still refuse settings that do not fit
    this host.
    """

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("settings", type=Path, help="ini file with the settings")
        parser.add_argument("--key", type=Path, required=True, help="file of the private key")
        parser.add_argument("--group", required=True, help="group of hosts")
        parser.add_argument(
            "--to",
            type=Path,
            required=True,
            metavar="FOLDER",
            help="folder in which the command writes GROUP.conf",
        )
        parser.add_argument(
            "--generation",
            type=int,
            help="number of this revision, which must be larger than the number of each earlier revision;"
            " default: the number in the existing file plus 1, or 1 if no file exists",
        )
        parser.add_argument(
            "--days",
            type=float,
            help="number of days after which a host that has not applied this revision yet refuses it;"
            " default: no limit",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Check and sign the settings, and write them to the target folder; return what to print."""
        from compute_agent.fleet import signature

        settings = parsed_args.settings.read_bytes()
        _check_settings(parsed_args.settings)
        private = parsed_args.key.read_bytes()
        target: Path = parsed_args.to / f"{parsed_args.group}.conf"
        days = parsed_args.days
        expires = None if days is None else datetime.now(UTC) + timedelta(days=days)
        generation = parsed_args.generation or _next_generation(target, private)
        content = signature.sign_revision(
            revision.write(settings, parsed_args.group, generation, expires), private
        )
        # The content is checked as a host would check it, before hosts can see the file.
        made = signature.read(content, [signature.public_key(private)])
        write_durably(target, content, 0o644)
        return document_columns({"file": str(target), **_revision_document(made)})


class FleetShow(_SigningCommand):
    """Show the group and generation of a signed file, if one of the keys signed it."""

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument(
            "--public-key",
            action="append",
            metavar="KEY",
            help="public key that the command accepts; can be given several times; default: [fleet]"
            " public_keys",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read the signed file, and verify it. Returns the names and values to print."""
        from compute_agent.fleet import signature

        keys = parsed_args.public_key or self.load_own_conf().fleet.public_keys
        # One more byte shows that the file is too large.
        with parsed_args.file.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        return document_columns(_revision_document(signature.read(content, keys)))


def _revision_document(shown: revision.FleetRevision) -> dict[str, Any]:
    expires = "" if shown.expires is None else shown.expires.isoformat()
    return {"group": shown.group, "generation": shown.generation, "expires": expires}


def _check_settings(settings: Path) -> None:
    """Check settings before they are signed.

    :raises FleetError: each host would refuse an option of the file, which the text names.
    :raises cfg.Error: the file is not an ini file, or a value does not fit its option.
    """
    if found := revision_problems(settings, agent_conf.load([], [])):
        raise FleetError("; ".join(found))
    agent_conf.load([], [str(settings)])


def _next_generation(target: Path, private: bytes) -> int:
    """The generation in the file ``target`` plus 1; 1 if the file does not exist.

    :raises FleetError: the file is not a revision that was signed with this key.
    """
    from compute_agent.fleet import signature

    try:
        present = target.read_bytes()
    except FileNotFoundError:
        # Without a file, this is the first revision at the target.
        return 1
    try:
        return signature.read(present, [signature.public_key(private)]).generation + 1
    except FleetError as error:
        raise FleetError(f"{target}: {error}; give --generation") from error


COMMANDS: Final[Commands] = {"fleet key": FleetKey, "fleet show": FleetShow, "fleet sign": FleetSign}
