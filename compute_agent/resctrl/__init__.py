"""Controls last-level cache and memory bandwidth through the kernel's resctrl filesystem.

The package does not depend on the rest of the agent. The package handles cache ids, ways, percents, groups
and thread ids. For this package, guests and classes are only names. Pure functions decide (``ways``,
``resolution``, ``plan``). Thin functions act (``groups``, ``apply``, ``mount``, ``monitoring``). The caller
passes a mount to each function, so that several mounts can be used at once. The kernel's
Documentation/filesystems/resctrl.rst defines the semantics.

Use
    Open the mount, resolve what classes and guests should have, plan the steps, and apply them::

        mount = open_mount()
        handle = open_handle(mount, ResctrlOptions(prefix="demo.", shared_ways=2))
        present = read_groups(handle.files)
        layout = handle.build_layout(present)
        wanted = resolve_groups(
            layout,
            classes={"BE": ShareSpec(llc=WayRange(0, 30), mb=40)},
            demands=[GuestDemand("web", ways={0: 4}), GuestDemand("batch", qos_class="BE")],
            present=present,
        )
        errors = apply_plan(handle.files, make_plan(layout, present, wanted).steps, handle.codec)
        move_tasks(handle.files, wanted.membership["web"], lambda: thread_ids)

    ``wanted.refused`` and ``errors`` give the reason for each request that could not be met.

    Counters of a group are read from files that stay open::

        counters, totals = CounterFiles(handle.files), BandwidthTotals()
        rates = totals.add_sample(counters.read_sample(wanted.membership["web"], time.monotonic()))

Modules
    - ``schemata``: masks of ways, and the syntax of schemata
    - ``platform``: the capabilities of a mount, as values
    - ``filesystem``: the files of a mount, and the kernel's errors
    - ``mount``: finds the mount and reads its capabilities
    - ``bandwidth``: percents and the units of each vendor
    - ``groups``: control groups and their threads
    - ``share_spec``: shares in percent that classes and guests ask for
    - ``ways``: the partition of a cache, and exclusive ways
    - ``layout``: a platform with its partitions, and the names of groups
    - ``resolution``: the wanted groups
    - ``plan``: the steps to the wanted groups; ``apply`` carries the steps out
    - ``monitoring``: monitoring groups and their counters

Nouns
    A *way* is a column of a cache, a *mask* a set of ways in the kernel's hexadecimal digits. A *control
    group* is a folder of the mount: a CLOSID with *schemata* (masks by cache id, bandwidth by domain), and
    the threads that these limits apply to. Groups of other programs are *foreign*.

    Each cache has a *partition* of its ways. The *pool* of a partition contains the ways that can become
    *exclusive* to one group; shared ways never become exclusive. *Open* ways are all ways that are not
    exclusive now.

    A *demand* belongs to one guest. A demand contains exclusive ways and bandwidth that are allocated to the
    guest, a *share* in percent of the open ways, the name of its class, and temporary limits. The share of
    the class applies if the guest has no share. A *resolution* contains the wanted groups with their schemata
    and members. A *plan* contains the steps from the existing groups to the wanted groups.

An example
    A cache of 12 ways (``fff``), 2 of them shared, has the pool ``3ff``. ``web`` gets 4 ways and ``db`` 3:
    ``f`` and ``70``. Any group can use the 5 open ways of mask ``f80``. A class with the range 0-30 can fill
    the lower 2 of these ways: ``180``.

    Later ``web`` ends, and ``big`` needs 7 ways. The pool has 7 free ways, but ``db`` lies between them.
    First the mask of ``db`` becomes ``7``, while ``db`` runs. Then ``big`` gets ``3f8``.

Invariants
    - After each step of a plan, an exclusive mask overlaps with no other mask of the agent.
    - No mask is ever empty, shorter than ``min_cbm_bits``, or has holes if the hardware accepts no holes.
    - If the pool has enough free ways for a request, the request gets its ways with the fewest possible
      moves. This is true even if masks must not have holes.
    - A new group exists completely or not at all, and foreign groups are never written.
    - If the kernel refuses a step, only the group of this step, and groups that need the ways of that group,
      are affected.
    - Each refused rule is reported with a reason, and the next rule for the guest or class applies instead.
"""
