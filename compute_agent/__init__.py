"""The host agent: it reads the hardware, reports it to Placement, and keeps guests on their assigned CPUs.

Packages
    - ``cmd``: the commands of ``compute-agent``, which call the running agent or work without it
    - ``agent``: assembles the agent, serves its sockets, and follows changes of the configuration
    - ``loops``: the periodic work of the agent, each kind in a thread of its own
    - ``throttling``: limits guests of lower classes to protect other guests
    - ``pipeline``: assigns CPUs to each guest, and repairs drift through ``controllers``
    - ``report``: keeps providers, inventories and allocations in Placement equal to those of the host
    - ``classification``, ``classes``, ``policy``: the settings of a guest, and the choice of its CPUs
    - ``drivers``: list and change guests of each kind; ``monitoring`` and ``usage`` measure guests
    - ``isolation``, ``schedules``: the kernel keeps other work off dedicated CPUs, and schedules threads
    - ``promises``, ``noise``: whether the host keeps its promises to guests, and their interruptions
    - ``reclaim``: unused CPUs and memory of guests, offered to other guests
    - ``inventory``, ``host``, ``resctrl``: the capabilities of the hardware and the kernel
    - ``conf``, ``events``, ``fleet``: options, the record of decisions, settings of a group of hosts
    - ``drawing``, ``qos``, ``model``: pictures, the interface for further metrics, nouns of all packages

Order of calls
    ``agent.assembly`` builds the pipeline and the loops, and ``agent.service`` starts and stops them. When a
    guest starts or ends, the worker of the pipeline resolves its settings. Then the policy chooses CPUs, and
    the controllers write the chosen CPUs to the kernel. The reporting loop compares the inventories with
    Placement.

Imports go in one direction: from the commands down to ``model``, which imports no other package.
CONTRIBUTING.md has the table, and ``pyproject.toml`` the contract.
"""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the version of the distribution."""
    try:
        return version("placement-compute")
    except PackageNotFoundError:
        # The program runs from its source, which was not installed.
        return "not installed"
