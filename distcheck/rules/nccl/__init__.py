"""Rules about NCCL's and torch's settings: variables and configuration files."""
