"""Start probes and ranks; knows no rules."""
