"""Rules about the variables that torch reads: valid, and consistent across the ranks."""
