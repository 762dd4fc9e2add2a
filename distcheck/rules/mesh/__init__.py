"""Rules about the dimensions of the job's parallelism (--mesh) and where their groups lie."""
