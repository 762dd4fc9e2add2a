"""Rules about the dimensions of --mesh: `dimensions` about their sizes, `placement` about where their groups lie.

Helpers, which hold no rules: `islands` (nodes and NVLink domains), `misplaced` (which groups lie badly, and what would
place them better).
"""
