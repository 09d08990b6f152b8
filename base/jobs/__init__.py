"""Run directories, and the jobs and ranks that work in them."""
