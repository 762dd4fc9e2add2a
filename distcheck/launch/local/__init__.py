"""The ranks that distcheck starts on this node: forks, tasks, supervision and clean-up."""
