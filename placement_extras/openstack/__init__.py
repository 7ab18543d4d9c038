"""Commands of the ``openstack`` client for ``/ext/v1``, a plugin of osc-placement. They use REST alone."""
