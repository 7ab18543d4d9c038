"""Last-level cache and memory bandwidth through the kernel's resctrl filesystem.

A library of its own: it knows cache ids, ways, percents and groups, and of guests and classes their names.
What decides (``masks``, ``schemata``, ``ways``, ``rules``, ``plan``) is pure; what acts (``filesystem``,
``mount``, ``reader``, ``apply``, ``counters``, ``monitor``) takes the mount it works on as an object, so that
several can be had at once. The contract is the kernel's Documentation/filesystems/resctrl.rst.

Nouns
    A *way* is a column of a cache, a *mask* a set of ways as the kernel writes it, in hexadecimal digits. A
    *group* is a folder of the mount: a CLOSID with *schemata* (masks by cache id, bandwidth by domain) and
    the threads in it. What others have made are *foreign* groups.

    The ways of a cache have a *division*: the *pool*, of which *exclusive* ways are given, and the shared
    ways, which are never given away. *Open* ways are those that nobody has for himself.

    A *demand* is what one guest may have: exclusive ways and bandwidth that were given to it, a *wish* in
    percent of the open ways, a class whose wish applies otherwise, and limits for the time being. A
    *resolution* is which groups should be, with which schemata, and who is in which; a *plan* the steps from
    the groups that are to these.

A worked example
    A cache of 12 ways (``fff``), 2 of them shared, has the pool ``3ff``. ``web`` is given 4 ways and ``db``
    3: they get ``f`` and ``70``. Open are ``f80``, 5 ways, and a class with the range 0-30 may fill the lower
    2 of them: ``180``. Then ``web`` ends, and ``big`` is given 7 ways. 7 are free, but ``db`` lies between
    them: its mask is rewritten to ``7`` while it runs, and only then ``big`` gets ``3f8``.

What always holds
    - No two exclusive masks overlap, and no other mask of ours overlaps one, after any step of a plan.
    - No mask is ever empty, shorter than ``min_cbm_bits``, or has holes where the hardware takes none.
    - Where masks have no holes, whatever fits the pool by its number is made to fit by moves, of which the
      fewest are looked for.
    - A group that was not there before is there whole or not at all, and foreign groups are never written.
    - What the kernel refuses holds up that group alone, and those that wait for its ways.
    - What is refused is told with the reason, and the next rule applies.
"""
