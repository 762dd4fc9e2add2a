"""The data of the reports; `document` is the contract of ``--format json``."""
