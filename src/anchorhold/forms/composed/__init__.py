"""What is made of other forms: sums over tasks, damping, and how such sums are solved."""
