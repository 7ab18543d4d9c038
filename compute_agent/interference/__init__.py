"""Interference: which guest disturbs which other one, shown by a trial, and held down no longer than needed.

Nouns
    A *signal* is what a guest suffers by (waiting for CPUs, say); a greater value is worse, and each signal
    has a lever that helps. A *watch* is a section of the configuration: a signal, and for whose sake what is
    done. The *baseline* of a guest is what the signal mostly is of it, learnt from itself. A sample above its
    *threshold* is a *violation*; half a minute of nothing else makes it a *victim*. A *suspect* is a guest
    that may be limited for it, shares the resource, and used more of it whenever the victim suffered more. A
    *case* is what is done about a victim and a suspect: a *trial*, a *verdict*, and if that is guilty a
    *hold* and giving back.

Who does what
    A loop reads all guests every ten seconds into a frozen ``Sample`` (``reading``). ``signals`` make values
    of it, ``baseline`` says which are violations, ``suspects`` who may be the cause. ``cases`` says what
    becomes of a case, and ``decide`` puts all of that together: state and sample in, state and decisions out.
    What is decided is carried out by the loop, with the levers that watermarks have.

A worked example
    A web server waits 2 % of its time for CPUs, 8 % at most. A batch job on the same CPUs begins to burn four
    cores, and it waits 40 %. Four samples violate the threshold, the first partly; of the three batch
    jobs there the use of this one goes with it (correlation 0.9). It is limited to 3.2 cores. The server
    waits 30 %, then 29 %: at least a tenth better in two windows, so that the job is guilty, but it is still
    disturbed: another step, and another, until it waits 6 %. That is held for five minutes. Then limits are
    given back one after the other, each for a minute; where the server suffers again, and more than while
    the job was held, the last step is taken again, and held twice as long. Had the first step not helped, it
    would have been undone, and the pair left alone for an hour.

What always holds
    - Guests that watermarks must not act on (dedicated CPUs, a high class) are never suspects; nor are guests
      of a higher class than the victim, and of the same class only where that class consents.
    - There is one trial on a host at a time, of one suspect, by one step at a time.
    - Who is limited itself is no victim, and learns no baseline from that.
    - All that was taken is given back: after hold, when victim or watch are gone, and after a crash.
"""
