"""Texts that do not fit on this machine: listed, fetched and read in shards."""
