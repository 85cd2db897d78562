"""Loading from an object store, beside the peers, on a server of this machine that answers after a stated latency."""
