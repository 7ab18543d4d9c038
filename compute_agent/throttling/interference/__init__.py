"""Interference: pure decisions that limit guests that disturb others, first on trial, then while it helps.

Nouns
    A *signal* measures how a guest suffers, such as its time of waiting for CPUs. A greater value is worse.
    Each signal has a lever, and limiting other guests with the lever reduces the signal. A *watch* is a
    section of the configuration: a signal, and the classes of victims. The *baseline* of a guest is the usual
    value of its signal, learnt from its own samples. A sample above the *threshold* is a *violation*. A guest
    with nothing but violations for half a minute is a *victim*. A *suspect* is a guest that may be limited
    for the victim, shares the resource, and used more of it whenever the victim suffered more. A *case* has a
    victim and a suspect, a *trial* of a limit and a *verdict*. After the verdict guilty, the limit is kept
    for a *hold*, and then given back step by step.

Modules
    - ``signals`` computes values from readings, and defines the watches.
    - ``evidence`` has baselines, violations and suspects.
    - ``cases`` advances a case.
    - ``decisions`` combines these, from ``state`` and samples to the next state and decisions.

A worked example
    A web server usually waits 2 % of its time for CPUs, and never more than 8 %. A batch job on the same CPUs
    begins to use four cores, and the server waits 40 %. Four samples in a row are violations. Among three
    batch jobs on these CPUs, the use of this one correlates with the signal (0.9). The job is limited to
    3.2 cores.

    The server waits 30 %, then 29 %: at least a tenth less in two windows, so the job is guilty. The server
    is still disturbed, and further steps follow until it waits 6 %. This limit is held for five minutes. Then
    the agent reverses the steps one after the other, at intervals of a minute. If the server then suffers
    more than during the hold, the agent repeats the last step, and holds it twice as long. If the first step
    does not help, the agent undoes it, and leaves the pair of server and job alone for an hour.

What always holds
    - Guests that watermarks must not act on (dedicated CPUs, a high class) are never suspects.
    - Guests of a higher class than the victim are never suspects. Guests of the same class are suspects only
      if the section lists the class in ``consenting``.
    - There is one trial on a host at a time, of one suspect, by one step at a time.
    - A limited guest is not a victim, and its baseline does not change while it is limited.
    - Each limit is removed in the end: after the hold, when the victim or the watch is gone, or after a
      crash.
"""
