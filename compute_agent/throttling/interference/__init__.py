"""Interference: pure decisions that limit guests that disturb others, first on trial, then while it helps.

Nouns
    A *signal* measures how a guest suffers (waiting for CPUs, say). A greater value is worse, and each signal
    has a lever that reduces it. A *watch* is a section of the configuration: a signal, and the classes of
    victims. The *baseline* of a guest is the usual value of its signal, learnt from itself. A sample above
    its *threshold* is a *violation*. A guest with violations only, for half a minute, is a *victim*. A
    *suspect* is a guest that may be limited for the victim, shares the resource, and used more of it whenever
    the victim suffered more. A *case* has a victim and a suspect, with a *trial* and a *verdict*. After the
    verdict guilty come a *hold* and the steps of giving back.

Modules
    - ``signals`` computes values from readings, and defines the watches.
    - ``evidence`` has baselines, violations and suspects.
    - ``cases`` advances a case.
    - ``decisions`` combines these, from ``state`` and samples to the next state and decisions.

A worked example
    A web server waits 2 % of its time for CPUs, 8 % at most. A batch job on the same CPUs begins to burn four
    cores, and the server waits 40 %. Four samples violate the threshold, the first partly. Among three batch
    jobs on these CPUs, the use of this one correlates with the signal (0.9). The job is limited to 3.2 cores.

    The server waits 30 %, then 29 %: at least a tenth better in two windows, so the job is guilty. The server
    is still disturbed: further steps follow until it waits 6 %. This limit is held for five minutes. Then the
    agent reverses the steps one after the other, at intervals of a minute. If the server suffers more than
    during the hold, the agent repeats the last step, and holds it twice as long. If the first step does not
    help, it is undone, and the pair is left alone for an hour.

What always holds
    - Guests that watermarks must not act on (dedicated CPUs, a high class) are never suspects.
    - Guests of a higher class than the victim are never suspects; of the same class only with its consent.
    - There is one trial on a host at a time, of one suspect, by one step at a time.
    - A limited guest is not a victim, and learns no baseline during the limit.
    - Each limit is given back: after the hold, when victim or watch are gone, and after a crash.
"""
