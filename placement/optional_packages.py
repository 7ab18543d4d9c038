"""Extras of the distribution: parts of the service that need packages which are not always installed."""


def how_to_install(extra: str) -> str:
    """The command that adds an extra.

    The index has no package of this name: a name without a path would be whatever somebody puts there.
    """
    return (
        f"install this release's wheel with its extra {extra}: "
        f"pip install '/PATH/TO/placement_compute-VERSION-py3-none-any.whl[{extra}]'"
    )


def missing(wanted: str, package: str, extra: str) -> ValueError:
    """The error of an option that needs a package that is not there, and what to do."""
    return ValueError(
        f"{wanted} needs {package}, which is not installed: leave the option out, or {how_to_install(extra)}"
    )
