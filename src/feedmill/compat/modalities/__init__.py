"""Modalities' data commands, datasets and tokenizers, implemented with Feedmill.

cli, config, packing, instruction     the commands of ``modalities data``
dataloader, tokenization              its classes, in modules of the same names
"""
