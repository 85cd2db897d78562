"""VLA Foundry's modalities: decode samples and collate them into batches.

A modality has two methods: ``cook(sample, rng)`` returns the sample's fields as a dict of arrays and text, ``batch``
returns a dict of columns. Each modality supports two forms of samples: tensor fields (``input_ids.pth``), as in VLA
Foundry's documentation, and the files that VLA Foundry's code reads.
"""
