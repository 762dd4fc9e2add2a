"""Starts probes on other nodes by ssh, srun or mpirun, and collects what they send home."""
