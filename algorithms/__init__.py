"""The algorithms, one file each. A new one changes nothing else."""
