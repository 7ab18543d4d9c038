"""The nouns that everybody uses, and that know nobody.

Guest, assignment, allocation, CPU set, knob, and the failures that several folders meet.
"""
