"""Rules about launchers: torchrun, Slurm, MPI, Kubernetes, and the start of the probes."""
