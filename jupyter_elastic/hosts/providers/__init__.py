"""Systems that give hosts: Slurm and Ray."""
