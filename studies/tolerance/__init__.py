"""A tolerance in the place of a strength: on digits, without old inputs, and at the size of the paper's networks."""
