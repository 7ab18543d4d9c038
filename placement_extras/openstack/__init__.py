"""Commands of the ``openstack`` client for ``/ext/v1``, a plugin of osc-placement.

The commands use only REST.
"""
