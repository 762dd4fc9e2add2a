"""Rules about a node by itself, and about distcheck itself."""
