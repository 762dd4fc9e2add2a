"""Rules of the environment family."""
