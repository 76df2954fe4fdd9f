"""A soak of the whole service: real processes under load, faults from a seed, a checker that judges what is left."""
