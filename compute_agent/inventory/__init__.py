"""From the host's topology and the operator's ini file to a tree of Placement resource providers."""
