"""Pictures of a host with its guests, and charts of values over time: as SVG, and as text for a terminal."""
