"""Usage of the host and its guests, read from the kernel's files at most once a round.

A *round* reads a file when a *measure*, a function that computes a usage, asks for the file. The round keeps
the parsed values, because the next round computes differences from them. A *subject* is a guest with the
sources of its counters. Its *allotment* of a control is the amount that the guest may use without a limit. A
*snapshot* is the usage of the host and its guests at one moment. Watermarks, interference, reclaimed capacity
and load-aware placement use this package. So one parser reads each file, and all these parts of the agent
measure guests in the same way.
"""
