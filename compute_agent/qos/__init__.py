"""The public names for other packages that add a metric of watermarks; see ``metrics``."""
