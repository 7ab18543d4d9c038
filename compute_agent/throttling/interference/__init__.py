"""Interference: pure functions that find guests that disturb others, and decide on their limits.

A limit begins as a trial, and stays only if it helps.

Nouns
    A *signal* measures how a guest suffers, such as its time of waiting for CPUs. A greater value is worse.
    Each signal has a lever: the kind of limit on other guests that reduces the signal. A *watch* is a section
    of the configuration: a signal, and the classes of victims. The *baseline* of a guest is the usual value
    of its signal, learnt from its own samples. A sample above the *threshold* is a *violation*. A guest is a
    *victim* if all its samples in half a minute are violations. A *suspect* is a guest that shares the
    resource, can be limited for the victim, and used more of the resource whenever the victim suffered more.
    A *case* is about a victim and a suspect. The case begins with the *trial* of a limit. The trial ends with
    a *verdict*. After the verdict guilty, the limit is kept for some minutes (the *hold*), and then raised
    step by step.

Modules
    - ``signals`` computes values from readings, and defines the watches.
    - ``evidence`` has baselines, violations and suspects.
    - ``cases`` advances a case.
    - ``decisions`` combines these modules: it computes the next ``state`` and the decisions from samples.

A worked example
    A web server usually waits 2 % of its time for CPUs, and never more than 8 %. One day, a batch job on the
    same CPUs begins to use four cores, and the server waits 40 % of its time. Four samples in a row are
    violations. Three batch jobs run on these CPUs, and the use of only this job correlates with the signal
    (0.9). The job is limited to 3.2 cores.

    The server now waits 30 % in the first window, and 29 % in the second. Both values are lower by at least a
    tenth, so the job is guilty. The server is still disturbed, and further steps follow until it waits 6 %.
    This limit is held for five minutes. After these five minutes, the agent reverses the steps one after the
    other, at intervals of a minute. If the server then suffers more than during the hold, the agent repeats
    the last step, and holds the lower limit twice as long. If the first step does not help, the agent undoes
    it, and leaves the pair of server and job alone for an hour.

Invariants
    - Protected guests, which watermarks must not limit either, are never suspects.
    - Guests of a higher class than the victim are never suspects. Guests of the same class are suspects only
      if the section lists the class in ``consenting``.
    - A host has at most one trial at a time. A trial lowers the limit of one suspect by one step.
    - A limited guest is not a victim, and its baseline does not change while it is limited.
    - Each limit ends: after the hold, when the victim or the watch no longer exists, or after a crash of the
      agent.
"""
