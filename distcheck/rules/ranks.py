"""Rules of the ranks family."""
