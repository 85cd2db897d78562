"""Create, check and repair indices: the verbs `prepare`, `check` and `repair`."""
