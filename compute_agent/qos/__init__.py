"""Watermarks: which guests give way when the host is overloaded, how far, and how they get everything back.

Files are read once a round (`sampler`, `sources`) into a frozen `snapshot`; the lines (`watermarks`) are
compared with it over time (`streaks`); what is to be done is a pure function of both (`plan`, `restore`);
the `executor` does it. A metric is a description (`metrics`), and others than the built-in ones come through
entry points.
"""
