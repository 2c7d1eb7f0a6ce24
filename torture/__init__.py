"""What can go wrong with what is kept, tried out by the thousand: seeded, and each trial can be made again alone."""
