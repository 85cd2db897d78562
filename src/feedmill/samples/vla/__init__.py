"""VLA Foundry's modalities: how samples are decoded, and how batches are made of them.

A modality has two functions: ``cook(sample, rng)`` gives the sample's fields as a dict of arrays and text, ``batch`` a
dict of columns. Both forms of each modality are read: fields of tensors (``input_ids.pth``), as VLA Foundry's
documentation has them, and those that its code reads.
"""
