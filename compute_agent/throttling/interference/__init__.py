"""Interference: pure decisions about guests that disturb others, shown by a trial, held down while it helps.

Nouns
    A *signal* measures how a guest suffers (waiting for CPUs, say). A greater value is worse, and each signal
    has a lever that helps. A *watch* is a section of the configuration: a signal, and the classes of victims.
    The *baseline* of a guest is the usual value of its signal, learnt from itself. A sample above its
    *threshold* is a *violation*. Half a minute of nothing else makes the guest a *victim*. A *suspect* is a
    guest that may be limited for it, shares the resource, and used more of it whenever the victim suffered
    more. A *case* is one about a victim and a suspect: a *trial* and a *verdict*; if that is guilty, a *hold*
    and giving back.

Modules
    - ``signals`` makes values of readings, and names the watches.
    - ``evidence`` has baselines, violations and suspects.
    - ``cases`` says how a case goes on.
    - ``decisions`` puts all of that together: ``state`` and samples in, state and decisions out.

A worked example
    A web server waits 2 % of its time for CPUs, 8 % at most. A batch job on the same CPUs begins to burn four
    cores, and the server waits 40 %. Four samples violate the threshold, the first partly. Of the three batch
    jobs there the use of this one goes with the signal (correlation 0.9). It is limited to 3.2 cores.

    The server waits 30 %, then 29 %: at least a tenth better in two windows, so that the job is guilty. The
    server is still disturbed: another step follows, and another, until it waits 6 %. That is held for five
    minutes. Then limits are given back one after the other, each for a minute. Where the server suffers more
    than while the job was held, the last step is taken again, and held twice as long. Had the first step not
    helped, it would have been undone, and the pair left alone for an hour.

What always holds
    - Guests that watermarks must not act on (dedicated CPUs, a high class) are never suspects.
    - Guests of a higher class than the victim are never suspects; of the same class only with its consent.
    - There is one trial on a host at a time, of one suspect, by one step at a time.
    - A guest that is limited itself is no victim, and learns no baseline from that.
    - All that was taken is given back: after the hold, when victim or watch are gone, and after a crash.
"""
