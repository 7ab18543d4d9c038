"""Estimates the shared CPUs that guests leave unused, and offers a part of them to other guests.

Nouns
    A *zone* is a NUMA node, or the whole host if its NUMA nodes have no providers of their own. The capacity
    of a zone is the number of its shared CPUs. Guests that hold ``CUSTOM_RECLAIMED_VCPU`` run on CPU time
    that the *others* leave: all other guests, and the system.

    A *reading* has the use of each guest and of the system in one minute, in cores. The *history* has the
    sums of the last two hours, and the hourly peaks of the last day, of each guest and of the whole zone. An
    *estimate* is an upper bound of the next use by the others. It is computed from several *terms*, as the
    example shows. An *offer* is the part of the remaining capacity that is promised. A *breach* is a broken
    promise: the others needed the offered CPUs, or a guest on the offered CPUs was throttled or evicted
    because CPUs were short.

An example
    A zone has 32 CPUs, and the following terms:

    - The sums of the last two hours are 6 cores on average, with a deviation of 0.5. Mean and 4 sigma are 8.
    - The hourly peaks of the last day are 7 cores on average, with a deviation of 1. If the largest guest
      used all of its 8 CPUs in 1 % of the hours, this use alone would have a deviation of 0.8. Both
      deviations together are 1.28, so mean and 4 sigma are 12.1.
    - In 85 % of the hours the system stays below 0.4 cores, and four guests stay below 2, 2, 3 and 1.6 cores.
      The sum of these numbers with a margin of 5 % is 9.45.

    The largest term is 12.1. A guest with 4 CPUs started ten minutes ago. The new guest has no history, so
    all of its CPUs count. All other guests and the system need at most 16.1 cores and leave 15.9: 15 CPUs are
    promised, and 17 reserved.

    If the present offer is smaller than this, it grows by at most 3 CPUs at a time, each time after 15
    minutes with enough unused CPUs. If the promise was broken yesterday by 2 CPUs, 3.2 CPUs (a tenth of all
    CPUs) are held back, and 12 are promised.

Invariants
    - In any minute that has a reading, the offer is at most the capacity that the estimate leaves.
    - Unknown use is full use. This rule holds for a guest without a history, and for a zone with less than a
      day of history or with an old last reading.
    - After a breach, less is offered until the zone has been read for another day.
    - An equal history and time give an equal offer. Nothing in these functions reads a clock or a file.
"""
