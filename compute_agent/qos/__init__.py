"""Public interface for packages that add metrics of watermarks; ``qos.metrics`` has the names."""
