"""Settings that hosts of a group have from one signed file.

Nouns
    A *group* of hosts has its settings from one *source*: a folder, or the address of one over HTTPS. There
    is one file for each group, ``GROUP.conf``. What is in it at a time is a *revision*: an ini file below a
    head that says of which group it is, its *generation*, and perhaps until when it may be taken up, all of
    which is signed. The revision that a host works by is *kept* in its state folder; one that it was offered
    last and did not take up is *refused*, and kept as well.

An example
    A file ``edge.conf``::

        # compute-agent fleet revision 1, signed: 0SGUBuI7...Cw==
        # group = edge
        # generation = 7
        # expires = 2027-01-01T00:00:00+00:00
        #
        [DEFAULT]
        cpu_allocation_ratio = 4

    Hosts at generation 6 take it up. Those at 8 do not, as nobody goes back; nor those of other groups, nor
    one whose CPUs it does not fit. To go back, what was in generation 6 is signed as generation 8.

What always holds
    - Nothing of a revision counts that is not signed by one of the keys that the host's own file names.
    - The generation that a host works by never goes down, and two contents never have the same one.
    - A revision is taken up as a whole, or not at all: it is tried before it is kept, and what is kept is
      whole after a crash, or the one before.
    - What the host's own files say counts more: on the host there is always a way to overrule the fleet.
    - A revision says nothing of what :mod:`compute_agent.fleet.rules` lists, so that it leads an agent to no
      other file, program, address or identity.
    - A source that is away, slow, endless or hostile changes nothing but what is told of it.
"""
