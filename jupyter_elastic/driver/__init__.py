"""ONE PROCESS FOR EACH ATTEMPT: its group's membership, its reports and its resource use."""
