"""Who can multiply: a file per backend, each of which ends in its row, and what they share in ``problem.py``."""
