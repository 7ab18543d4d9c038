"""Commands of the ``openstack`` client for ``/ext/v1``, as a plugin of osc-placement.

The commands send REST requests, and use no other part of the service.
"""
