"""The libraries, each called as its users call it; a module for each, which needs that library when it is imported."""
