"""What a run tells of itself: while it goes on, from close by, and of what is left after each task."""
