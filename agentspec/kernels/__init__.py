"""Tree attention, acceptance, sampling processors and KV compaction."""
