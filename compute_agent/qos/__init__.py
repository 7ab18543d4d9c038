"""The address at which packages of others find what a metric of watermarks needs; see ``metrics``."""
