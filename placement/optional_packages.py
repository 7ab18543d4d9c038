"""Messages about optional packages, which pip installs in groups: the *extras* of the distribution."""


def how_to_install(extra: str) -> str:
    """Return the command that installs this release with an extra.

    The command has the path of a wheel, because this service is not published on PyPI. With a name instead of
    a path, pip would install any package that PyPI has under this name.
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
