"""The ranks that distcheck starts on this node: forked, told what to measure, watched, and ended."""
