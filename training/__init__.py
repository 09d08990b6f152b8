"""Train one run, from the settled configuration to the final report."""
