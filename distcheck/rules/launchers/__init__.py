"""Rules about what started the job: torchrun's agents, Slurm, MPI, Kubernetes, and the probes' own start."""
