"""How much of the shared CPUs guests leave unused, and how much of that may be promised to others.

Nouns
    A *zone* is a NUMA node, or the host where its nodes have no providers of their own; what there is of it
    are its shared CPUs. Guests that hold ``CUSTOM_RECLAIMED_VCPU`` live on what the *others* leave: all other
    guests, and the system. A *reading* is what each used for a minute, in cores, and *history* is what is
    kept of readings: the sums of the last two hours, and of each guest and of all together the peaks of the
    last 24 hours. An *estimate* is how much the others may use next, with every term of it; an *offer* is
    what is promised of the rest. A *breach* is a promise that was broken: the others needed what was
    offered, or who lives on it was throttled or evicted for the sake of CPUs.

A worked example
    A zone of 32 CPUs. In the last two hours the others used 6 cores together on average, with a standard
    deviation of 0.5: mean and 4 sigma are 8. The peaks of the hours of the last day were 7 cores, with a
    deviation of 1; the largest guest has 8 CPUs, and if it used all of them in 1 % of the hours, that alone
    were a deviation of 0.8: both together are 1.28, and mean and 4 sigma 12.1. The system stays below 0.4
    cores in 85 % of the hours, and four guests below 2, 2, 3 and 1.6: with a margin of 5 %, 9.45. The largest
    is 12.1. A guest came ten minutes ago, with 4 CPUs: nobody knows it, and it counts whole. The others may
    need 16.1, so that 15.9 are left: 15 are promised, and 17 reserved. If it was less so far, it grows by 3
    CPUs at a time, after 15 minutes in which they were there. Were the promise broken yesterday by 2 CPUs,
    3.2 (a tenth of all) would be held back, and 12 promised.

What always holds
    - No more is promised than the estimate leaves, in any minute that has a reading.
    - What is not known counts as used: guests without a history whole, a zone without a day of it, or
      with readings of a quarter of an hour ago, as full.
    - After a breach less is offered until the zone has been read for a day.
    - The same history and time give the same offer; nothing here reads a clock or a file.
"""
