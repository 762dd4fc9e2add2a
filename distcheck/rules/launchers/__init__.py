"""Rules about launchers: torchrun, Slurm, MPI, Kubernetes, and the start of the probes.

Module without rules: `started_probes` (how the probes that distcheck started ended).
"""
