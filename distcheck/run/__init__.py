"""One run in one process: alone, as leader, as follower, or from outside the job."""
