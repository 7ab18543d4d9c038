"""From events to a kernel that is as it should be.

One queue, one worker, the cache of guests and its state file.
"""
