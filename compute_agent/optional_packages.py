"""Extras of the distribution: parts of the agent that need packages which are not always installed."""

from __future__ import annotations

from importlib.util import find_spec

from compute_agent.model.messages import ConfigError


def missing(wanted: str, package: str, extra: str) -> ConfigError:
    """The error of what needs a package that is not there, and how to install it.

    The index has no package of this name: a name without a path would be whatever somebody puts there.
    """
    return ConfigError(
        f"{wanted} needs the Python package {package}, which is not installed: install this release's wheel"
        f" with its extra {extra}, pip install '/PATH/TO/placement_compute-VERSION-py3-none-any.whl[{extra}]'"
    )


def require_cryptography(wanted: str) -> None:
    """:raises ConfigError: cryptography, which signatures need, is not installed."""
    if find_spec("cryptography") is None:
        raise missing(wanted, "cryptography", "fleet")
