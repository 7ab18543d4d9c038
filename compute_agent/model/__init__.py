"""The nouns of the agent that several folders share. This folder imports no other folder of the agent.

Modules
    - ``guest``: a guest with its identity, demands, allocation and assignment of CPUs
    - ``guest_settings``: the settings of a guest, such as its class and priority, and their sources
    - ``cpuset``: sets of CPUs as text, the CPU sets of a host, classes and pools of CPUs
    - ``resource``: resource classes, block I/O, shares of memory, and controls of throttling
    - ``messages``: errors that cross folders, and how messages show names and foreign text

All objects here are frozen values, so threads use the same objects without locks. Each folder is allowed to
import these modules.
"""
