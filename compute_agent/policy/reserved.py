"""CPUs that stay free for consumers whose guest is not there yet.

Placement counts what is allocated, so a guest that takes what it holds leaves enough for all others. One that
takes more, for siblings that it keeps empty, may take what somebody else has been promised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compute_agent.policy.base import Assignment, Demand, Refusal, Request, Supply


def infringes(
    supply: Supply, request: Request, assignment: Assignment, reserved: Mapping[str, Sequence[Demand]]
) -> Refusal | None:
    """Why a guest cannot have ``assignment``; None if it can.

    ``reserved`` is what consumers without a guest hold, by consumer; the request's own is left out. Zones are
    taken to lie within one another or apart: then it is enough that each has as many free CPUs as are
    reserved inside.
    """
    demands = [
        demand for consumer, parts in reserved.items() if consumer != request.guest for demand in parts
    ]
    zones = {demand.cpus: demand.zone for demand in demands if demand.cpus & assignment.withheld}
    for cpus, name in zones.items():
        needed = sum(demand.pcpu for demand in demands if demand.cpus <= cpus)
        left = (supply.cpu_sets.dedicated & cpus & supply.topology.online) - supply.taken(request)
        if len(left - assignment.held) < needed:
            return Refusal(
                f"{name} has {len(left)} free dedicated CPUs; {len(assignment.held & cpus)} are needed,"
                f" siblings included, and {needed} are kept for allocations without a guest"
            )
    return None
