"""Rules about the variables that torch reads: valid, and consistent across the ranks.

`launcher_variables` has a finding that two of them share.
"""
