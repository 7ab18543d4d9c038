"""Commands that install, remove and show the agent's hook of libvirt: ``compute-agent libvirt hook ...``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from compute_agent.agent.protocol import socket_path
from compute_agent.cmd.base import AgentCommand, Commands, ShowOne, document_columns
from compute_agent.drivers.libvirt import hook

_RESTART: Final = "libvirtd (or virtqemud) looks for hooks when it starts: restart it, guests run on"


class _HookCommand:
    """Base class of the commands of the hook. Adds the option for libvirt's folder of hooks."""

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--hooks",
            type=Path,
            default=hook.HOOKS,
            metavar="FOLDER",
            help=f"libvirt's folder of hooks; {hook.HOOKS} by default",
        )


class HookInstall(_HookCommand, AgentCommand):
    """Install the hook by which libvirt announces starting guests to the agent.

    With the hook, the agent puts a guest into its cache group as soon as the guest starts.

    The hook needs libvirt 6.5 or later. The command never overwrites a hook of another program.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Write the script of the hook, and print its path."""
        new = hook.install_hook(parsed_args.hooks, socket_path(self.load_conf()))
        path = hook.hook_path(parsed_args.hooks)
        self.app.stdout.write(f"{path} is installed. {_RESTART}.\n" if new else f"{path} is there already.\n")


class HookRemove(_HookCommand, AgentCommand):
    """Remove the hook that ``libvirt hook install`` has made."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Remove the script of the hook, and print its path."""
        removed = hook.remove(parsed_args.hooks)
        path = hook.hook_path(parsed_args.hooks)
        self.app.stdout.write(f"{path} is {'removed' if removed else 'not there'}.\n")


class HookShow(_HookCommand, ShowOne):
    """Show whether the hook is absent, installed, outdated, or of another program (foreign).

    To replace an outdated hook, run ``libvirt hook install`` again.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Compare the hook's script with the one of this release; return what to print."""
        socket = socket_path(self.load_conf())
        state = hook.state(parsed_args.hooks, socket)
        path = hook.hook_path(parsed_args.hooks)
        return document_columns({"path": str(path), "state": str(state), "socket": str(socket)})


COMMANDS: Final[Commands] = {
    "libvirt hook install": HookInstall,
    "libvirt hook remove": HookRemove,
    "libvirt hook show": HookShow,
}
