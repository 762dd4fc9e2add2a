"""Rules of the gpu family."""
