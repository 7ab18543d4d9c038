"""Extras of the distribution: parts of the service that need packages which may not be installed."""


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra.

    The index has no package of this name: a name without a path would install any package published under it.
    """
    return (
        f"install this release's wheel with its extra {extra}: "
        f"pip install '/PATH/TO/placement_compute-VERSION-py3-none-any.whl[{extra}]'"
    )


def missing_package(wanted: str, package: str, extra: str) -> ValueError:
    """Return the error of an option that needs a missing package, with the remedy."""
    return ValueError(
        f"{wanted} needs {package}, which is not installed: leave the option out, or {how_to_install(extra)}"
    )
