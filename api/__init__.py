"""The HTTP side of the queue: takes jobs, tells how they are, points at their audio. It never loads torch."""
