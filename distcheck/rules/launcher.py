"""Rules of the launcher family."""
