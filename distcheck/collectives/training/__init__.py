"""Training steps of a small model on every rank, with exact expectations."""
