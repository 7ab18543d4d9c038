"""Settings that hosts of a group share, from one signed file.

Nouns
    A *group* of hosts has its settings from one *source*: a folder, or the address of one over HTTPS. The
    source has one file for each group, ``GROUP.conf``. The content of a file at a time is a *revision*: an
    ini file below a head with the group, the *generation*, and optionally an expiry. The signature covers all
    of it.

    A host *adopts* a revision, and keeps it in its state folder. The host also keeps the last *refused* one:
    it was offered, but not adopted.

An example
    A file ``edge.conf``::

        # compute-agent fleet revision 1, signed: 0SGUBuI7...Cw==
        # group = edge
        # generation = 7
        # expires = 2027-01-01T00:00:00+00:00
        #
        [DEFAULT]
        cpu_allocation_ratio = 4

    Hosts at generation 6 adopt it. Hosts at 8 refuse it, since generations never go down. So do hosts of
    other groups, and hosts with CPUs that it does not fit. To go back, the settings of generation 6 are
    signed as generation 8.

Invariants
    - Only a revision signed by one of the keys in the host's own file has an effect.
    - The generation of a host never goes down, and two contents never have the same one.
    - A revision is adopted as a whole or not at all. A revision is tried before it is kept. After a crash the
      host has either the old one or the new one as a whole.
    - The host's own files take precedence, so that the fleet can always be overruled on the host.
    - A revision cannot have the options that :mod:`compute_agent.fleet.rules` lists, so that it leads an
      agent to no other file, program, address or identity.
    - A source that is unreachable, slow, endless or hostile changes nothing except status and logs.
"""
