"""The command line: options in, one run, the report out."""
