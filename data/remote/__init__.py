"""Read a text from s3:// or https:// in shards: it need not fit on this disk."""
