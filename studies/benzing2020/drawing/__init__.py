"""How the paper's tables and figures are drawn."""
