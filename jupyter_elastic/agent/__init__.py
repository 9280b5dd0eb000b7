"""THE USER'S AGENT: carries out the daemon's orders. Nothing here knows policies: the daemon decides about slots."""
