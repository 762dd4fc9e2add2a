"""Rules of the collectives family."""
