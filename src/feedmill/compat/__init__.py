"""The peers' own faces over the rooms above; no logic of its own."""
