"""Many runs: sweeps, searches and the processes of their trials."""
