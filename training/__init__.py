"""Train one run: choose its open settings, fit the model with Lightning, evaluate it and write a report."""
