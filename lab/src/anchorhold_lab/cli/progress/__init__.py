"""How runs are shown while they go on."""
