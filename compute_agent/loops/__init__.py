"""What goes round for as long as the agent lives, and what connects it to the pipeline.

Reports to Placement, watermarks and evictions, monitoring, guests that arrive, audits.
"""
