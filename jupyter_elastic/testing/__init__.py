"""For authors of engines and policies: what either must hold."""
