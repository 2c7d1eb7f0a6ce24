"""Many runs in few lines: which of them, in which columns. None of it needs torch."""
