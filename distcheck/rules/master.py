"""Rules of the master family."""
