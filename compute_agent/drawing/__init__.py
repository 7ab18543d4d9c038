"""Pictures as SVG: a host with its guests in colour, and values over time."""
