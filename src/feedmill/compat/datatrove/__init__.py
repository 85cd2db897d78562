"""datatrove's reader of tokens (`utils.dataset`), implemented with Feedmill."""
