"""The probes that distcheck starts on other nodes, by ssh, srun or mpirun, and what they send home."""
