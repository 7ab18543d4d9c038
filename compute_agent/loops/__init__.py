"""What goes round for as long as the agent lives, and what connects it to the pipeline: reports to Placement,
watermarks and evictions, monitoring, guests that arrive, audits.
"""
