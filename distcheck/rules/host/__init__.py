"""Rules about a single node, and about distcheck itself."""
