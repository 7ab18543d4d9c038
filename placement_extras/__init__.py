"""Parts of the service beside its core, which imports none of them.

Each registers itself by entry points (:mod:`placement.extensions`) and uses functions of the core: searches,
the read model, handlers of the API. The service is delivered with all of them.

console
    Pages for operators, in a browser.
planner
    Counts how many guests fit, and finds moves that make room (``/ext/v1/capacity``).
flavors
    Translates flavors of Nova to requests for allocation candidates.
migration
    Moves from OpenStack Placement and back: import, adoption in place, abandonment.
shadow
    Sends the requests of OpenStack Placement to this service, too, and compares the answers.
openstack
    Commands of the ``openstack`` client for ``/ext/v1``.
"""
