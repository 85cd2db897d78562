"""The settings of Megatron-LM's data tools, ``preprocess_data`` and ``merge_datasets``."""

from __future__ import annotations

from feedmill.formats.settings import Origin, Table, alike, mapped, no_effect, refused

_CORES = no_effect("all cores are used")
_MODEL = no_effect("it sizes the model, not the data")
_NULL = no_effect("only with NullTokenizer, which has no texts")
_VOCABULARY = mapped("vocab.json (or vocab.txt) and merges.txt in one folder")


PREPROCESS = Table(
    face="`preprocess_data`",
    origin=(
        Origin("options", "tools/preprocess_data.py", "get_args"),
        Origin("arguments", "megatron/training/config/training_config.py", "TokenizerConfig"),
        Origin("arguments", "megatron/training/models/gpt.py", "GPTModelConfig", whole=False),
    ),
    settings={
        "input": mapped("a file of JSON lines; with several partitions also a pattern of files, read sorted by name"),
        "json_keys": mapped("the keys of the texts"),
        "output_prefix": mapped("the files are PREFIX_KEY_document.bin and .idx"),
        "split_sentences": mapped("a sequence for each sentence, by Punkt of NLTK: PREFIX_KEY_sentence.bin and .idx"),
        "keep_newlines": mapped("white space after a sentence belongs to it"),
        "lang": mapped("language of the sentences"),
        "append_eod": mapped("the end-of-document token after each document"),
        "partitions": mapped("line *k* is in partition *k* modulo their number; partitions follow one another"),
        "keep_sequential_samples": mapped("the order of the lines, for any number of partitions"),
        "workers": mapped("number of processes, one per core without it; the files are the same"),
        "tokenizer_type": mapped("the kind of tokenizer"),
        "tokenizer_model": mapped("a folder or file on this machine; nothing is downloaded"),
        **alike(_VOCABULARY, "vocab_file merge_file"),
        "tokenizer_hf_no_include_special_tokens": mapped("without the tokenizer's template"),
        "log_interval": no_effect("a progress bar shows the rate"),
        **alike(_CORES, "workers_to_check max_documents"),
        "vocab_size": no_effect("the size of the vocabulary is the tokenizer's own"),
        "vocab_extra_ids": no_effect("the original sets it to 0"),
        **alike(_MODEL, "padded_vocab_size no_pad_vocab_size make_vocab_size_divisible_by"),
        "trust_remote_code": no_effect("no code of a tokenizer is run"),
        **alike(no_effect("fast and slow tokenizers give the same ids"), "tokenizer_hf_no_use_fast use_gigatoken"),
        "chat_template": no_effect("the texts are not conversations; for these, see `feedmill tokenize --chat`"),
        **alike(_NULL, "null_tokenizer_eod_id null_tokenizer_pad_id"),
        "find_optimal_num_workers": refused("it only measures the original; all cores are used by default"),
        "tokenizer_metadata": refused("it can name another class of tokenizer, which is code"),
        "tokenizer_special_tokens": refused(
            "tokens that the tokenizer's files do not have would change its ids: add them to its own files"
        ),
        "tokenizer_sentencepiece_legacy": refused(
            "it adds tokens beyond the model's: convert the model to a tokenizer.json that has them"
        ),
        "no_tokenizer_sentencepiece_ignore_extra_whitespaces": refused("white space is read by the rules of the model"),
        "tiktoken_pattern": refused("only the pattern of the file's own family is known"),
        "tiktoken_num_special_tokens": refused("the special tokens are those of the file", "1000"),
    },
)
FLAGS = (
    "find_optimal_num_workers", "no_pad_vocab_size", "trust_remote_code", "tokenizer_hf_no_use_fast", "use_gigatoken",
    "tokenizer_sentencepiece_legacy", "no_tokenizer_sentencepiece_ignore_extra_whitespaces",
)  # fmt: skip
"""Settings without a value, of those that are not used."""

MERGE = Table(
    face="`merge_datasets`",
    origin=(Origin("options", "tools/merge_datasets.py"),),
    settings={
        "input": mapped("a folder of .bin and .idx files, which are merged in the order of their names"),
        "output_prefix": mapped("the files are PREFIX.bin and PREFIX.idx"),
        "multimodal": mapped("the sequences have modes"),
    },
)
TABLES = (PREPROCESS, MERGE)
