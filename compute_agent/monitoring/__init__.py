"""Cache occupancy and memory bandwidth of guests and classes.

They are measured, offered to watermarks and Prometheus, and kept for a while.
"""
