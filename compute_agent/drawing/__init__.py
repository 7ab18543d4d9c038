"""Pictures of a host with its guests, and of values over time: as SVG, and as text for a terminal."""
