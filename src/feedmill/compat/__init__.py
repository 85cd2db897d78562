"""Drop-in command lines and Python modules of other tools, implemented with Feedmill. No logic of its own."""
