"""Remote texts, which need not fit on this disk: listed, fetched and read in shards."""
