"""Settings that hosts of a group share, from one signed file.

Nouns
    A *group* of hosts gets its settings from one *source*: a folder, or the HTTPS address of a folder. The
    source has one file for each group, ``GROUP.conf``. Each signed version of this file is a *revision*: an
    ini file below a head with the group, a number (the *generation*) and optionally an expiry. The signature
    covers the whole revision.

    A host *adopts* a revision: the host keeps the revision in its state folder and uses its settings. The
    host also keeps the last *refused* revision: one that the source offered and the host did not adopt.

An example
    A file ``edge.conf``::

        # compute-agent fleet revision 1, signed: 0SGUBuI7...Cw==
        # group = edge
        # generation = 7
        # expires = 2027-01-01T00:00:00+00:00
        #
        [DEFAULT]
        cpu_allocation_ratio = 4

    Hosts with generation 6 adopt this revision. Hosts with generation 8 refuse this revision, because
    generations never go down. Hosts of other groups refuse this revision, too. To go back to the settings of
    generation 6, sign them again as generation 8.

Invariants
    - A revision has an effect only if it is signed by a key in the host's own configuration files.
    - The generation of a host never goes down, and two different revisions never have the same generation.
    - A revision is adopted as a whole or not at all. A host tries a revision before the adoption. After a
      crash the host has either the whole old revision or the whole new revision.
    - The host's own files take precedence, so that the fleet can always be overruled on the host.
    - A revision cannot set the options that :mod:`compute_agent.fleet.revision` lists, so it cannot lead an
      agent to another file, program, address or identity.
    - A source that is unreachable, slow, endless or hostile has no effect except in status and logs.
"""
