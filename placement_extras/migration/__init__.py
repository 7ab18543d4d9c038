"""Moves from OpenStack Placement and back: import, adoption in place, abandonment."""
