"""What is lost when a pretrained language model learns something new, and what keeps it."""
