"""Messages about optional packages, which pip installs with an extra of the distribution."""


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra.

    The command has a path, because PyPI has no package of this service: a name alone would install any
    package that is published under this name.
    """
    return (
        f"install this release's wheel with its extra {extra}: "
        f"pip install '/PATH/TO/placement_compute-VERSION-py3-none-any.whl[{extra}]'"
    )


def missing_package(wanted: str, package: str, extra: str) -> ValueError:
    """Return the error for an option that needs a missing package, with the command that installs it."""
    return ValueError(
        f"{wanted} needs {package}, which is not installed: leave the option out, or {how_to_install(extra)}"
    )
