"""The tuner: measure every algorithm on this machine, and make a plan of the times."""
