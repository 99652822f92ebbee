"""The tuner: measure every algorithm on this very box, and turn what was found into a plan."""
