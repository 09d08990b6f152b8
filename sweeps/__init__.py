"""Many runs: sweeps, searches, and the processes or jobs of their trials."""
