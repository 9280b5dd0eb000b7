"""THE USER'S AGENT: carries out the daemon's orders. Nothing here knows policies: others decide which slots."""
