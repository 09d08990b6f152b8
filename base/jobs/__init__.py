"""Run directories, and the jobs and processes that work in them."""
