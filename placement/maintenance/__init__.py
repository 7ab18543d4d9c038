"""What ``placement-manage`` does to whole databases."""
