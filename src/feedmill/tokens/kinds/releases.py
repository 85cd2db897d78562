"""Apply the settings next to a ``tokenizer.json`` as a release of transformers does, and decide which one is followed.

datatrove and Dolma read only ``tokenizer.json``; programs that use ``AutoTokenizer`` (Modalities, VLA Foundry, most
trainers) also get what these files set (transformers 4.57):

    tokenizer_config.json     ``added_tokens_decoder``; tokens by role (``eos_token``), ``additional_special_tokens``;
                              ``add_prefix_space``; ``do_lower_case``, ``strip_accents``, ``tokenize_chinese_chars``
    special_tokens_map.json,  tokens, if ``tokenizer_config.json`` has no ``added_tokens_decoder``
    added_tokens.json

Tokens that the model lacks get the next ids. What goes around a text is in `feedmill.tokens.template`.

Releases 4 and 5 of `AutoTokenizer` read one folder differently (`applied` and `template` follow 4.57, `as_five` 5.24).
If both give the same ids, there is nothing to decide. Otherwise the user must: the model was trained with one of them
(``findings/transformers_4_and_5_tokenizers.sh``).

Transformers 4 loads the file, and changes a few of its parts. Release 5 chooses a class, and most classes keep only the
vocabulary, the merges and the template of the file: normalizer and pre-tokenizer are their own (`_BUILT`), and added
tokens get new ids. ``add_bos_token``, ``add_eos_token`` and, outside these classes, ``add_prefix_space`` have no
effect. `test_releases` compares this module with the installed release.

The table of the keys of ``tokenizer_config.json`` is closed: a key is applied (`APPLIED`), harmless for a reason
(`HARMLESS`), or decided by code that Feedmill does not have (`UNDECIDED`). Any other key is named in the report; the
classes of transformers 4.57 and 5.24 that are followed here read no other one.

Conversions that take seconds are kept in ``$FEEDMILL_CACHE_DIR/tokenizers``, so that they are made once.

A file is named after everything that decides its content, and after its own hash. It may be deleted at any time.
"""

from __future__ import annotations

import contextlib
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import xxhash

from feedmill.errors import ConfigError, StorageError
from feedmill.storage.folders import cache_folder
from feedmill.storage.local import LocalStore
from feedmill.tokens.engines import CHECK, HuggingFace, Vocabulary, differences
from feedmill.tokens.kinds.slow import CLASSES, ROLES, bert_normalizer, roles_of, token_of
from feedmill.tokens.template import (
    CONFIG,
    FAMILIES,
    Template,
    TemplateSource,
    family_of,
    read_settings,
    resolve,
    tokens_around,
)

RELEASE = "5.24"
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_MODEL_TYPES = {
    "BertTokenizer": (
        "align bark bert blip bros chinese_clip convbert distilbert electra ernie flava git grounding-dino "
        "layoutlm megatron-bert mm-grounding-dino nezha nomic_bert qdqbert realm retribert squeezebert tvp "
        "vilt visual_bert"
    ),
    "Qwen2Tokenizer": (
        "audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl lighton_ocr "
        "moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe "
        "qwen2_vl qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice"
    ),
    "GPT2Tokenizer": (
        "blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip instructblipvideo jais2 "
        "opt phi starcoder2"
    ),
    "RobertaTokenizer": (
        "bart bridgetower clap data2vec-text ibert lilt longformer mega mra roberta roberta-prelayernorm"
    ),
    "GemmaTokenizer": (
        "diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 t5gemma zaya"
    ),
    "GPTNeoXTokenizer": ("falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm"),
    "CohereTokenizer": ("aya_vision cohere cohere2"),
    "LlamaTokenizer": ("idefics idefics2"),
    "": (
        "EvollaModel aria beam bigbird_pegasus canary flex_olmo glm glm4 glm4_moe glm4_moe_lite glm4v "
        "glm4v_moe glm_image glmasr got_ocr2 gpt_bigcode gradium_phonon_tts granite granitemoe "
        "granitemoehybrid granitemoeshared kimi_k25 kimi_linear kosmos-2 mimo_v2_flash minicpm_ocr minicpmv4_6 "
        "minicpmv4_7 ministral ministral3 mistral mistral3 mistral_large4 mixtral nemo_speechlm nystromformer "
        "olmo2 olmo3 olmo_hybrid omniasr pegasus_x persimmon pix2struct pixtral pocket_tts stablelm umt5 "
        "voxtral voxtral_realtime xlm-roberta-xl modernbert nemotron iquestcoder vipllava h2ovl_chat phimoe "
        "paddleocr_vl cohere_asr llava_next internlm2 minimax_m2 hyperclovax molmo camembertv2-base chatlm "
        "ernie4_5_moe ernie4_5 internlm3 opencua step3_vl jamba minicpmv nvfp4 openvla smolvlm llava minicpm3 "
        "phi3_v hyperclovax_vlm phi3 modernbert-decoder arctic molmo2 fuyu"
    ),
}
"""Class -> model types in ``config.json``; "" is for those whose file is read as it is."""
_MISNAMED = (
    "arctic camembertv2-base chatlm cohere_asr ernie4_5 ernie4_5_moe fuyu h2ovl_chat hyperclovax "
    "hyperclovax_vision_v2 hyperclovax_vlm internlm2 internlm3 iquestcoder jamba llava llava_next minicpm3 "
    "minicpmv minimax_m2 modernbert modernbert-decoder molmo molmo2 nemotron nvfp4 opencua openvla "
    "paddleocr_vl phi3 phi3_v phimoe qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp siglip2 smolvlm "
    "step3_vl vipllava"
)
"""Model types whose ``tokenizer_class`` is ignored."""
_BERTS = ("ConvBertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "LayoutLMTokenizer")
_OTHERS = (
    "Albert Bart Barthez Bartpho BertGeneration BertJapanese Bertweet BigBird BioGpt Blenderbot "
    "BlenderbotSmall ByT5 CLIP CTRL Camembert Canine Clvp CodeLlama Cpm CpmAnt DPRContextEncoder "
    "DPRQuestionEncoder DPRReader Deberta DebertaV2 Dia Esm Esmc FNet FSMT Flaubert Funnel GPTNeoXJapanese "
    "GPTSw3 Herbert LED Lasr LayoutLMv2 LayoutLMv3 LayoutXLM Luke Lxmert M2M100 MBart MBart50 MLuke MPNet "
    "Marian MarkupLM Mgpstr Mistral MobileBert Mvp MyT5 Nllb Nougat OpenAIGPT PLBart Parakeet Pegasus "
    "Perceiver Phobert Pop2Piano ProphetNet Qwen3_5 Rag Reformer RemBert RoCBert RoFormer SeamlessM4T Siglip "
    "Siglip2 Speech2Text SpeechT5 Splinter T5 Tapas Tipsv2 Udop VideoPrism Vits Wav2Vec2CTC Wav2Vec2PhonemeCTC "
    "Whisper XGLM XLM XLMRoberta XLNet"
)
"""Other classes of release 5, which this module does not know, without "Tokenizer"."""

Parts = dict[str, Any]
Settings = Mapping[str, Any]


def as_five(document: Mapping[str, Any], folder: Path, written: Mapping[str, int]) -> tuple[dict[str, Any] | None, str]:
    """Return the ``tokenizer.json`` that release 5 makes of one and the settings next to it, and its class.

    Args:
        document: the file's content; `folder`: where it is.
        written: the ids of added tokens that are written there, where `tokenizers` gives other ones: they decide the
            order in which a class adds them.

    Returns:
        None and the class, if the class is not known here.

    Raises:
        ConfigError: it refuses the settings.
    """
    settings = read_settings(folder / CONFIG)
    name = class_of(settings, read_settings(folder / "config.json"), document)
    if name not in _BUILT and name:
        return None, name
    if name and document["model"].get("type") != ("WordPiece" if name == "BertTokenizer" else "BPE"):
        return None, name
    built = dict(document) if not name else _BUILT[name](dict(document), settings)
    listed, roles, several = _tokens(settings, folder, document, name, written)
    if name:
        built["added_tokens"] = []
    _add_all(built, listed, roles, several)
    if name == "Qwen2Tokenizer":
        add(built, [flags_of(token_of(token), True) | {"normalized": False} for token in (*roles.values(), *several)])
    if name == "CohereTokenizer":
        add(built, [flags_of(token, True) | {"special": True} for token in (*roles.values(), *several)])
    if name in ("BertTokenizer", "RobertaTokenizer"):
        built["post_processor"] = _ends(built, *(token_of(roles.get(role)) for role in ("cls_token", "sep_token")))
    return built, name


def class_of(settings: Settings, config: Settings, document: Mapping[str, Any]) -> str:
    """Return the class that release 5 chooses, without "Fast"; empty if it reads the file as it is."""
    given = settings.get("tokenizer_class") or config.get("tokenizer_class")
    name = str(given).removesuffix("Fast") if given else None
    kind = str(config.get("model_type") or "")
    usual = next((known for known, kinds in _MODEL_TYPES.items() if kind in kinds.split()), None) if kind else None
    if name == "LlamaTokenizer" and kind not in _MISNAMED.split() and _byte_level(document):
        return ""
    if name is not None and usual is not None and usual != name:
        name = None if not usual else usual if kind in _MISNAMED.split() else name
    elif name is None and usual:
        name = usual
    if name in _BERTS:
        return "BertTokenizer"
    known = name is not None and (name in _BUILT or name.removesuffix("Tokenizer") in _OTHERS.split())
    return str(name) if known else ""


def _byte_level(document: Mapping[str, Any]) -> bool:
    def found(part: Any) -> bool:
        if isinstance(part, dict):
            return part.get("type") == "ByteLevel" or any(map(found, part.values()))
        return isinstance(part, list) and any(map(found, part))

    return found(document.get("pre_tokenizer")) or found(document.get("decoder"))


def _tokens(
    settings: Settings, folder: Path, document: Mapping[str, Any], name: str, written: Mapping[str, int]
) -> tuple[list[tuple[int, Any]], dict[str, Any], list[Any]]:
    """Return the added tokens with their numbers, those by role, and the others, as release 5 collects them."""
    given = dict(settings)
    if "additional_special_tokens" in given and not given.get("extra_special_tokens"):
        given["extra_special_tokens"] = given.pop("additional_special_tokens")
    own = {
        k: given.pop(k) for k in list(given) if k.endswith("_token") and k not in ROLES and isinstance(given[k], str)
    }
    extra = given.get("extra_special_tokens")
    if isinstance(extra, dict):
        own |= given.pop("extra_special_tokens")
    listed: dict[int, Any] = {}
    if "added_tokens_decoder" in given:
        listed = numbered(given["added_tokens_decoder"], folder)
    else:
        for key, value in read_settings(folder / "special_tokens_map.json").items():
            if key == "extra_special_tokens" and isinstance(value, list):
                old = list(given.get(key) or [])
                value = [*old, *(token for token in value if token not in old)]
            given[key] = value
        if isinstance(given.get("extra_special_tokens"), dict):
            own |= given.pop("extra_special_tokens")
        special = {token_of(given[role]) for role in ROLES if given.get(role)}
        special |= {token_of(token) for token in given.get("extra_special_tokens") or ()}
        for token, number in read_settings(folder / "added_tokens.json").items():
            plain = {"normalized": token not in special, "special": token in special}
            listed[number] = {"content": token} | dict.fromkeys(FLAGS[:3], False) | plain
        listed |= {written.get(token["content"], token["id"]): token for token in document.get("added_tokens") or ()}
    by_name = {token["content"]: token for token in listed.values()}
    named = _DEFAULTS.get(name, {}) | given
    roles = {role: named[role] for role in ROLES if named.get(role) is not None}
    roles = {role: by_name.get(str(token_of(token)), token) for role, token in roles.items()}
    more = {k: v for k, v in given.items() if k.endswith("_token") and k not in ROLES and isinstance(v, dict)}
    extra = given.get("extra_special_tokens", given.get("additional_special_tokens"))
    return sorted(listed.items()), roles | more | own, list(extra or ())


def _add_all(
    document: dict[str, Any], listed: list[tuple[int, Any]], roles: dict[str, Any], several: list[Any]
) -> None:
    """Add tokens to a document as the class does."""
    had = {
        token["content"]: {flag: bool(token.get(flag)) for flag in FLAGS} for token in document["added_tokens"] or ()
    }
    names = {str(token_of(token)) for token in roles.values()}
    new = [flags_of(token, False) for _, token in listed]
    new = [token for token in new if had.get(token["content"]) != {flag: token[flag] for flag in FLAGS}]
    known = had.keys() | {token["content"] for token in new}
    changed = names & {text for text, flags in had.items() if not flags["special"]} - {
        token["content"] for token in new
    }
    new += [{"content": text, **had[text]} for text in sorted(changed)]
    for token in (*roles.values(), *several):
        text = token_of(token)
        if text is None:
            raise ConfigError(f"a special token is {token!r:.80}, expected a text", kind="unknown-token")
        if text not in known:
            new.append(flags_of(token, isinstance(token, str)))
            known |= {text}
    if new:
        add(document, [token | {"special": token["special"] or token["content"] in names} for token in new])


def _model(document: Parts, **flags: Any) -> Parts:
    model = {key: document["model"][key] for key in ("type", "vocab", "merges") if key in document["model"]}
    return document | {"model": model | {"dropout": None, "unk_token": None, "byte_fallback": False} | flags}


def _level(settings: Settings, *before: Parts, regex: bool = True) -> Parts:
    prefix = settings.get("add_prefix_space", False)
    last = {"type": "ByteLevel", "add_prefix_space": bool(prefix), "trim_offsets": True, "use_regex": regex}
    return {"type": "Sequence", "pretokenizers": [*before, last]} if before else last


def _llama(document: Parts, settings: Settings) -> Parts:
    prefix = settings.get("add_prefix_space")
    scheme = "never" if prefix is False else "always" if settings.get("legacy", False) else "first"
    words = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    return _model(document, fuse_unk=True, byte_fallback=True) | {"normalizer": None, "pre_tokenizer": words}


def _gemma(document: Parts, settings: Settings) -> Parts:
    unknown = token_of(settings.get("unk_token", "<unk>"))
    words = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    normal = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    model = _model(document, fuse_unk=True, byte_fallback=True, unk_token=unknown)
    return model | {"normalizer": normal, "pre_tokenizer": words}


def _qwen2(document: Parts, settings: Settings) -> Parts:
    split = {"type": "Split", "pattern": {"Regex": _QWEN}, "behavior": "Isolated", "invert": False}
    return _model(document) | {"normalizer": {"type": "NFC"}, "pre_tokenizer": _level(settings, split, regex=False)}


def _gpt2(document: Parts, settings: Settings) -> Parts:
    return _model(document) | {"normalizer": None, "pre_tokenizer": _level(settings)}


def _gpt_neox(document: Parts, settings: Settings) -> Parts:
    parts = {"normalizer": {"type": "NFC"}, "pre_tokenizer": _level(settings), "post_processor": None}
    return _model(document) | parts


def _cohere(document: Parts, settings: Settings) -> Parts:
    digits = {"type": "Digits", "individual_digits": True}
    return _model(document) | {"normalizer": {"type": "NFC"}, "pre_tokenizer": _level(settings, digits)}


def _bert(document: Parts, settings: Settings) -> Parts:
    normal = {"type": "BertNormalizer", "clean_text": True, "strip_accents": settings.get("strip_accents")}
    normal |= {"handle_chinese_chars": settings.get("tokenize_chinese_chars", True)}
    normal |= {"lowercase": settings.get("do_lower_case", True)}
    model = {"type": "WordPiece", "vocab": document["model"]["vocab"], "continuing_subword_prefix": "##"}
    model |= {"max_input_chars_per_word": 100, "unk_token": token_of(settings.get("unk_token", "[UNK]"))}
    return document | {"model": model, "normalizer": normal, "pre_tokenizer": {"type": "BertPreTokenizer"}}


def _ends(document: Parts, first: str | None, last: str | None) -> Parts:
    ids = dict(document["model"]["vocab"]) | {token["content"]: token["id"] for token in document["added_tokens"]}
    return {"type": "BertProcessing", "sep": [last, ids.get(last)], "cls": [first, ids.get(first)]}


_BUILT: dict[str, Callable[[Parts, Settings], Parts]] = {
    "LlamaTokenizer": _llama,
    "GemmaTokenizer": _gemma,
    "Qwen2Tokenizer": _qwen2,
    "GPT2Tokenizer": _gpt2,
    "CodeGenTokenizer": _gpt2,
    "RobertaTokenizer": _gpt2,
    "GPTNeoXTokenizer": _gpt_neox,
    "CohereTokenizer": _cohere,
    "BertTokenizer": _bert,
}
_BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
_END = "<|endoftext|>"
_DEFAULTS = {
    "LlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "GemmaTokenizer": {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    | {"mask_token": "<mask>"},
    "Qwen2Tokenizer": {"unk_token": _END, "eos_token": _END, "pad_token": _END},
    "GPT2Tokenizer": {"unk_token": _END, "bos_token": _END, "eos_token": _END},
    "CodeGenTokenizer": {"unk_token": _END, "bos_token": _END, "eos_token": _END},
    "RobertaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"}
    | {"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"},
    "GPTNeoXTokenizer": {"unk_token": _END, "bos_token": _END, "eos_token": _END, "pad_token": "<|padding|>"},
    "CohereTokenizer": {"unk_token": "<UNK>", "bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"}
    | {"pad_token": "<PAD>", "cls_token": "<CLS>", "sep_token": "<SEP>", "mask_token": "<MASK_TOKEN>"},
    "BertTokenizer": _BERT,
}
"""Class -> special tokens by role, unless the settings name others."""


APPLIED = {
    *ROLES,
    *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"),
    *("add_bos_token", "add_eos_token", "add_prefix_space", "legacy", "tokenizer_class", "split_special_tokens"),
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars"),
    *("extra_ids", "language", "task", "predict_timestamps"),  # of T5 and Whisper
}
_LONG, _BACK, _CHAT = "padding and truncation, which tokenizing has not", "decoding only", "conversations only"
_FILE, _SLOW, _TYPES = "where the files came from", "the classes in Python only", "other inputs of a model than ids"
HARMLESS = {
    **dict.fromkeys(("model_max_length", "max_len", "max_length", "stride", "truncation", "truncation_side"), _LONG),
    **dict.fromkeys(("truncation_strategy", "padding", "padding_side", "pad_token_id", "pad_to_multiple_of"), _LONG),
    **dict.fromkeys(("clean_up_tokenization_spaces", "errors", "spaces_between_special_tokens"), _BACK),
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": _BACK,
    **dict.fromkeys(("chat_template", "response_template", "response_schema", "chat_control_tokens"), _CHAT),
    **dict.fromkeys(("use_default_system_prompt", "default_chat_template", "grounded_generation_template"), _CHAT),
    "tool_use_template": _CHAT,
    **dict.fromkeys(("name_or_path", "tokenizer_file", "special_tokens_map_file", "processor_class"), _FILE),
    **dict.fromkeys(("vocab_file", "merges_file", "backend", "files_loaded", "is_local", "local_files_only"), _FILE),
    **dict.fromkeys(
        ("_commit_hash", "transformers_version", "init_inputs", "use_fast", "device_map", "verbose"), _FILE
    ),
    **dict.fromkeys(("sp_model_kwargs", "do_basic_tokenize", "never_split", "remove_space", "keep_accents"), _SLOW),
    **dict.fromkeys(("model_input_names", "pad_token_type_id", "return_token_type_ids"), _TYPES),
    "trim_offsets": "places of tokens in the text only",
}
UNDECIDED = {
    "auto_map": "names a class in code of the model",
    "fix_mistral_regex": "replaces the pre-tokenizer of some releases' files",
    "from_slow": "builds the tokenizer from its other files",
}


def check_keys(settings: Mapping[str, Any], folder: Path) -> list[str]:
    """Return a note about the keys that are not known; empty if all are.

    Raises:
        ConfigError: a key is set that code decides which Feedmill does not have.
    """
    for key, why in UNDECIDED.items():
        value = settings.get(key)
        if value and (key != "auto_map" or not isinstance(value, dict) or "AutoTokenizer" in value):
            raise ConfigError(
                f"{key} {why}, which can change the ids and is not applied",
                file=str(folder / CONFIG),
                kind="undecided-template",
                fix="Pass --template-source file to use tokenizer.json alone (in Python template_source='file'), or"
                " remove the key. AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW) writes a tokenizer.json.",
            )
    unknown = sorted(key for key in settings if key not in APPLIED and key not in HARMLESS and not _is_known(key))
    return [f"not known, no effect: {', '.join(unknown)}"] if unknown else []


def _is_known(key: str) -> bool:
    return key in UNDECIDED or key.endswith("_token")  # a token of the model, such as image_token


FOUR, FIVE = "transformers4", "transformers5"
_FILES = (CONFIG, "config.json", "special_tokens_map.json", "added_tokens.json")


class Read(NamedTuple):
    """A ``tokenizer.json`` as it is read.

    Attributes:
        document: its content, with the settings applied.
        changes: what they changed, and which release is followed if the releases differ.
        five: whether its own template counts, as in release 5.
    """

    document: dict[str, Any]
    changes: list[str]
    five: bool


def read_as(path: Path, vocabulary: Vocabulary, source: TemplateSource) -> Read:
    """Return a ``tokenizer.json`` as `AutoTokenizer` reads it.

    Args:
        path, vocabulary: the file and its vocabulary, with its content.
        source: ``transformers4`` or ``transformers5`` for one release, ``flags`` for the settings of release 4,
            ``auto`` if both are alike or only one of them can read the settings; ``class`` is ``auto``, but what goes
            around a text does not count.

    Raises:
        ConfigError: the releases differ; or the settings are corrupt, contradictory or of an unknown kind.
    """
    folder, ids, document = path.parent, vocabulary.ids, vocabulary.document or {}
    written = {token: number for token, (number, _) in vocabulary.renumbered.items()}
    if not any((folder / name).is_file() for name in _FILES):
        return Read(document, [], False)
    settings = read_settings(folder / CONFIG)
    notes = check_keys(settings, folder)
    four = None if source == FIVE else Read(*applied(document, folder), False)
    if source in (FOUR, "flags"):
        assert four is not None
        return four._replace(changes=[*four.changes, *([] if source == "flags" else ["as transformers 4.57"]), *notes])
    found, name = as_five(document, folder, written)
    readable = _four_can(settings, read_settings(folder / "config.json"))
    if found is None:
        if four is None or not readable:
            raise unknown_class(folder, name)
        note = f"class {name} as transformers 4.57 ({RELEASE} builds it again, and was not compared)"
        return four._replace(changes=[*four.changes, note, *notes])
    five = Read(found, [*_changes(document, found), f"as transformers {RELEASE}", *notes], True)
    if four is None or not readable:
        return five
    own = tokens_around(found)
    around = own if source == "class" else resolve(path, four.document, _ids(four.document, ids), "auto")
    what = _around(around, own) or _difference(path, four.document, found)
    if what is None:
        return four._replace(changes=[*four.changes, *notes])
    raise ConfigError(
        f"transformers 4.57 and {RELEASE} read this tokenizer differently: {what}",
        file=str(folder),
        kind="undecided-template",
        fix=f"Pass --template-source {FIVE} or --template-source {FOUR}, whichever the model is trained with, or"
        " --template-source file to use tokenizer.json alone (in Python template_source=...).",
    )


def _ids(document: Mapping[str, Any], ids: dict[str, int]) -> Mapping[str, int]:
    return ChainMap({token["content"]: token["id"] for token in document.get("added_tokens") or ()}, ids)


def _four_can(settings: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return whether release 4 can read a folder: it needs a class, and no list of extra tokens."""
    name = settings.get("tokenizer_class") or config.get("tokenizer_class")
    known = name not in (None, "TokenizersBackend", "PythonBackend") or config.get("model_type") is not None
    return known and not isinstance(settings.get("extra_special_tokens"), list)


def _around(four: Template | None, five: Template) -> str | None:
    """Return how two templates differ; None if they are alike."""
    if (((), ()) if four is None else four[:2]) == five[:2]:
        return None
    ends = [() if each is None else each.names[0] + each.names[1] for each in (four, five)]
    one, two = (" ".join(end) or "nothing" for end in ends)
    return f"around a text, the first adds {one}, the other {two}"


def _difference(path: Path, four: dict[str, Any], five: dict[str, Any]) -> str | None:
    """Return how the ids of two documents differ; None if they are alike."""
    if _parts(four) == _parts(five):
        return None
    texts = [orjson.dumps(document | {"post_processor": None}) for document in (four, five)]
    added = {str(token): token for document in (four, five) for token in document.get("added_tokens") or ()}

    def wrong() -> bytes:
        engines = [HuggingFace(path, text) for text in texts]
        return orjson.dumps(differences(engines[0], engines[1], added=list(added.values()))[:1])

    found = orjson.loads(kept(f"releases {[*map(xxhash.xxh3_128_hexdigest, texts)]} {CHECK}", wrong))
    return f"their ids differ, e.g. for {found[0]!r:.80}" if found else None


def _parts(document: Mapping[str, Any]) -> list[Any]:
    """Return what decides the ids, but for the vocabulary, which both releases take from the file."""
    model = {key: value or None for key, value in document["model"].items() if key not in ("vocab", "merges")}
    return [
        {key: value for key, value in model.items() if value is not None},
        document.get("normalizer"),
        _without_offsets(document.get("pre_tokenizer")),
        sorted(_token(token) for token in document.get("added_tokens") or ()),
    ]


def _without_offsets(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _without_offsets(value) for key, value in part.items() if key != "trim_offsets"}
    return [*map(_without_offsets, part)] if isinstance(part, list) else part


def _token(token: Mapping[str, Any]) -> tuple[Any, ...]:
    return (token["id"], token["content"], *(bool(token.get(flag)) for flag in FLAGS))


def _changes(document: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    had = {_token(token)[1:] for token in document.get("added_tokens") or ()}
    names = {token[0] for token in had}
    new = [_token(token) for token in found["added_tokens"] or () if _token(token)[1:] not in had]
    return [f"{'flags of' if token[1] in names else 'token'} {token[1]!r}" for token in new]


def unknown_class(folder: Path, name: str) -> ConfigError:
    """Return the error that release 5 cannot be followed for a class."""
    return ConfigError(
        f"how transformers {RELEASE} builds the class {name} is not known",
        file=str(folder),
        kind="undecided-template",
        fix="AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW) of that release writes a tokenizer.json; use it"
        " with --template-source file.",
    )


VERSION = "1"
"""Changed when a conversion changes."""


def kept(key: str, make: Callable[[], bytes]) -> bytes:
    """Return the conversion of this key, or make it. A cache folder that cannot be used is no error."""
    folder = cache_folder() / "tokenizers"
    stem = xxhash.xxh3_128_hexdigest(f"{VERSION} {key}".encode())
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob(f"{stem}-*.json")):
            data = path.read_bytes()
            if path.name == _named(stem, data):
                return data
    data = make()
    with contextlib.suppress(OSError, StorageError):
        LocalStore(folder).write_bytes(_named(stem, data), data)
    return data


def _named(stem: str, data: bytes) -> str:
    return f"{stem}-{xxhash.xxh3_128_hexdigest(data)}.json"


FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def applied(document: dict[str, Any], folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return a ``tokenizer.json`` with the settings of a folder applied, and what they changed.

    Args:
        document: its content, which is not modified. The special tokens of its class may be in ``tokens``.

    Raises:
        ConfigError: the settings are corrupt.
    """
    settings = read_settings(folder / CONFIG)
    name = _class(settings, folder)
    roles = document.get("tokens") or roles_of(settings, folder, _defaults(name))
    found = {key: value for key, value in document.items() if key not in ("tokens", "class")}
    changes: list[str] = []
    if wanted_tokens := _wanted(settings, folder, found, roles):
        add(found, wanted_tokens, changes)
    words, wanted = found.get("pre_tokenizer"), bool(settings.get("add_prefix_space"))
    level = words if isinstance(words, dict) and words.get("type") == "ByteLevel" else None
    if settings and level is not None and bool(level.get("add_prefix_space", True)) != wanted:
        found["pre_tokenizer"] = level | {"add_prefix_space": wanted}
        changes.append(f"add_prefix_space {str(wanted).lower()}")
    normalizer = found.get("normalizer")
    if name in CLASSES and CLASSES[name].rule == "bert" and isinstance(normalizer, dict):
        for key, value in bert_normalizer(settings).items():
            if normalizer.get("type") == "BertNormalizer" and normalizer.get(key) != value:
                found["normalizer"] = found["normalizer"] | {key: value}
                changes.append(f"{key} {str(value).lower()}")
    return found, changes


def _class(settings: Mapping[str, Any], folder: Path) -> str:
    """Return the class that the settings name, or that of the type of the model."""
    family = family_of(settings, folder)
    if family is not None:
        return family[0]
    kind = read_settings(folder / "config.json").get("model_type") if "tokenizer_class" not in settings else None
    usual = next((name for name, known in CLASSES.items() if kind in known.model_types.split()), None)
    return usual or str(settings.get("tokenizer_class")).removesuffix("Fast")


def _defaults(name: str) -> Mapping[str, str]:
    """Return the special tokens of a class by role, which it has unless the settings name others."""
    if name in CLASSES:
        return CLASSES[name].tokens
    if name not in FAMILIES:
        return {}
    family = FAMILIES[name]
    tokens = {"bos_token": family.bos, "eos_token": family.eos, "unk_token": family.unk, "pad_token": family.pad}
    return {role: token for role, token in tokens.items() if token is not None}


def _wanted(
    settings: dict[str, Any], folder: Path, document: Mapping[str, Any], roles: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the tokens to add, in order, with their flags."""
    known = {token["content"]: token for token in document.get("added_tokens") or ()}
    listed = settings.get("added_tokens_decoder")
    key = "additional_special_tokens"
    several = settings.get(key)
    if listed is None:
        several = read_settings(folder / "special_tokens_map.json").get(key, several)
    extra = settings.get("extra_special_tokens")
    special = [*roles.values(), *(several if isinstance(several, list) else ())]
    special += [*extra.values()] if isinstance(extra, dict) else []
    names = {token_of(token) for token in special}
    listed_tokens: dict[int, dict[str, Any]] = {}
    if listed is not None:
        listed_tokens = numbered(listed, folder)
    else:  # those of a tokenizer.json take precedence over this file
        added = read_settings(folder / "added_tokens.json")
        pairs = {str(i): {"content": t, "special": t in names, "normalized": t not in names} for t, i in added.items()}
        listed_tokens = numbered(pairs, folder)
        listed_tokens |= {token["id"]: flags_of(token, bool(token.get("special"))) for token in known.values()}
    out = [
        token | {"special": token["special"] or token["content"] in names}
        for _, token in sorted(listed_tokens.items())
        if {key: known.get(token["content"], {}).get(key) for key in token} != token
    ]
    seen = known.keys() | {token["content"] for token in out}
    for token in special:
        name = token_of(token)
        if name is not None and name not in seen:
            seen |= {name}
            out.append(flags_of(token, True))
    return out


def numbered(listed: Any, folder: Path) -> dict[int, dict[str, Any]]:
    """Return the tokens of ``added_tokens_decoder`` by number, with their flags. Raises ConfigError."""
    try:
        return {int(number): flags_of(token, bool(token.get("special"))) for number, token in listed.items()}
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ConfigError(
            f"the added tokens are not a mapping of numbers and tokens ({type(error).__name__}: {error})",
            file=str(folder / CONFIG),
            fix="Fix the file.",
        ) from None


def flags_of(token: Any, special: bool) -> dict[str, Any]:
    """Return a token with its flags, as `AddedToken` of `tokenizers`. Raises TypeError."""
    given = token if isinstance(token, dict) else {"content": token}
    if not isinstance(given.get("content"), str):
        raise TypeError(f"{token!r:.80} is not a token")
    flags = {flag: bool(given.get(flag)) for flag in FLAGS[:3]}
    special = bool(given.get("special", special)) or special
    return {"content": given["content"], **flags, "normalized": bool(given.get("normalized", not special))} | {
        "special": special
    }


def add(document: dict[str, Any], tokens: Iterable[Mapping[str, Any]], changes: list[str] | None = None) -> None:
    """Add tokens to a document, or change their flags, as `tokenizers` does."""
    vocab, changes = document["model"]["vocab"], [] if changes is None else changes
    base = {text: number for number, (text, _) in enumerate(vocab)} if isinstance(vocab, list) else vocab
    added = {token["content"]: token for token in document.get("added_tokens") or ()}
    following = max([len(base), *(token["id"] + 1 for token in added.values())])
    for token in tokens:
        name = token["content"]
        if not name:
            continue
        changes.append(f"{'flags of' if name in added else 'token'} {name!r}")
        number = added[name]["id"] if name in added else base.get(name, following)
        added[name] = {**token, "id": number}
        following = max(following, number + 1)
    document["added_tokens"] = [*added.values()]
