"""Rules about the variables of the job: what torch reads, and whether the ranks agree."""
