"""Reports the host to Placement, and reads allocations from Placement.

Modules
    - ``reporter``: makes Placement's providers equal to the host's tree, and remembers what the agent wrote
    - ``plan``: finds the actions that change one tree into another
    - ``adjustments``: the values of inventories that other programs set, and that stay or not
    - ``held_amounts``: amounts that guests still hold, and that must not be offered again; PCI devices of
      other programs, devices that are gone, and devices that were used
    - ``reshape``: the allocations that move with their inventories, in one request
    - ``execution``: sends a plan to Placement, as one tree or action by action
    - ``capacity``: free amounts by provider, near the CPUs of a guest
    - ``root_provider``: the owner of the root, and the switch that keeps new guests away
    - ``audit``: differences between guests and their allocations, and repairs
    - ``guest_claims``: claims of the agent for guests without an allocation
    - ``claim_ends``: the end times of claims, and what happens then
    - ``history``: recognises an older copy of Placement's database, for instance after a restore
    - ``client``: one method for each request; the client uses ``transport``, ``bounded_session``, ``answers``
      and ``tracing``

Order of calls
    For a report, the agent reads the providers (``reporter.ProviderReader``), reserves held amounts and plans
    actions. The reporter saves the names of classes and traits that can become the agent's own, and sends the
    plan. Then it saves the names that have become the agent's own. So after a crash between these steps the
    agent still knows everything that it may have written.

Plans, reshapes and decisions of the audit are pure functions. ``loops``, ``agent`` and ``cmd`` import this
package. The package imports ``inventory``, ``host`` and ``model``, and no driver.
"""
