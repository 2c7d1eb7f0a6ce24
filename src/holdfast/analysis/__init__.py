"""What runs tell about importance: correlations, path integrals, gradient noise."""
