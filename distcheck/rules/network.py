"""Rules of the network family."""
