"""The API of our own, beside that of OpenStack Placement: a blueprint for each resource, below ``/ext/v1``.

It has no microversions; what it has is told by its version document. What it does not have in common
with the other API is here and in :mod:`placement.api.paths`, and the blueprints of OpenStack Placement
know nothing of it.
"""
