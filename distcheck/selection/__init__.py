"""What torch, NCCL, CUDA and launchers make of what they find, worked out as they do it."""
