"""Last-level cache and memory bandwidth through the kernel's resctrl filesystem.

A library of its own: it knows cache ids, ways, percents and groups, and only the names of guests and classes.
Pure functions decide (``ways``, ``resolution``, ``plan``); thin ones act (``groups``, ``apply``, ``mount``,
``monitoring``) on a mount that is passed to them, so that several can be open. The contract is the kernel's
Documentation/filesystems/resctrl.rst.

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

    ``wanted.refused`` and ``errors`` give the reason of everything that was not possible.

Modules
    ``schemata`` masks and the syntax of schemata; ``platform`` the capabilities of a mount; ``filesystem``
    its files; ``mount`` finds it and reads its capabilities; ``bandwidth`` codecs by vendor; ``groups``
    control groups; ``share_spec`` requested shares; ``ways`` the partition of a cache; ``layout`` a
    platform with partitions; ``resolution`` the wanted groups; ``plan`` the steps to them; ``apply``
    carries these out; ``monitoring`` counters.

Nouns
    A *way* is a column of a cache, a *mask* a set of ways in the kernel's hexadecimal digits. A *control
    group* is a folder of the mount: a CLOSID with *schemata* (masks by cache id, bandwidth by domain) and
    its threads. Groups of other programs are *foreign*.

    The ways of a cache have a *partition*: the *pool*, from which *exclusive* ways are assigned, and the
    shared ways, which are never exclusive. *Open* ways are all that are not exclusive.

    A *demand* is what one guest may have: exclusive ways and bandwidth allocated to it, a *share* in
    percent of the open ways, a class whose share applies otherwise, and temporary limits. A *resolution*
    has the wanted groups with their schemata and members; a *plan* has the steps from the existing groups
    to these.

An example
    A cache of 12 ways (``fff``), 2 of them shared, has the pool ``3ff``. ``web`` gets 4 ways and ``db`` 3:
    ``f`` and ``70``. Open are ``f80``, 5 ways, and a class with the range 0-30 may fill the lower 2 of
    them: ``180``. Then ``web`` ends, and ``big`` needs 7 ways. 7 are free, but ``db`` lies between them:
    its mask is rewritten to ``7`` while it runs, and only then ``big`` gets ``3f8``.

Invariants
    - No two exclusive masks overlap, and no other mask of the agent overlaps one, after any step of a plan.
    - No mask is ever empty, shorter than ``min_cbm_bits``, or has holes where the hardware accepts none.
    - Where masks have no holes, every request that fits the pool by its number is made to fit by the fewest
      moves.
    - A new group exists completely or not at all, and foreign groups are never written.
    - A refusal of the kernel stops that group alone, and the groups that need its ways.
    - Each refusal has a reason, and the next rule applies.
"""
