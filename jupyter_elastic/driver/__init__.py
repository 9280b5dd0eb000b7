"""ONE PROCESS FOR EACH ATTEMPT: who belongs to its group, what is reported of it, what it uses."""
