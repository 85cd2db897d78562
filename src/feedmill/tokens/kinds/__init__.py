"""Tokenizers in the files of other programs: find them, and convert each to a ``tokenizer.json``.

model       which file a name stands for: a file, a folder, or a model in the Hugging Face cache on this machine
ranks       tiktoken files, the patterns of its encodings, and Mistral's tekken.json: byte-level BPE by ranks
pieces      SentencePiece BPE models, by themselves and as transformers' Llama class reads them
slow        folders with vocab.json and merges.txt of GPT-2, or vocab.txt of Bert
releases    the settings of tokenizer_config.json that AutoTokenizer applies to a tokenizer.json, which release of
            transformers is followed, and what release 5 makes of the file; conversions that are kept on this machine
"""
