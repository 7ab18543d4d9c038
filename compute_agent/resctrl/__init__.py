"""Last-level cache and memory bandwidth through the kernel's resctrl filesystem.

A library of its own: it knows cache ids, ways, percents and groups, but no guests beyond their names. What
decides (`masks`, `schemata`, `ways`, `rules`, `plan`) is pure; what acts (`filesystem`, `mount`, `reader`,
`apply`, `monitor`) takes the mount it works on as an object, so that several can be had at once.

The contract is the kernel's Documentation/filesystems/resctrl.rst.
"""
