"""What a list of many runs needs to know of each, without reading every file again. None of it needs torch."""
