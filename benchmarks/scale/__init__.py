"""Simulation of 10^9 documents, 10^5 shards, 1 PB and 4,096 ranks on one machine; docs/scale.md has its figures."""
