"""Usage of the host and its guests, read from the kernel's files at most once a round.

A *round* reads files when a measure asks for them; what was read is kept, so that the next round can tell
what has changed since. A *subject* is a guest as a round measures it, with the *allotment* that it may use of
each control. A *snapshot* is the host and its guests at one moment. Watermarks, interference, reclaimed
capacity and load-aware placement all measure with these, so that each file has one parser, and each guest is
measured by one rule.
"""
