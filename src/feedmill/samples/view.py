"""Build the view of a dataset's samples from its description (``dataset.yaml``).

Descriptions have one of four forms:

1. ``sample_type`` and ``field_map``: samples have that type, and the map fills the fields.
2. ``sample_type``, ``sample_loader`` and ``part_filter``: the dataset's own function returns the fields. This requires
   trust.
3. ``__class__: CrudeWebdataset``: samples stay `Sample`; ``part_filter`` (a list, or a trusted function) hides parts.
4. ``__class__: CaptioningWebdataset`` and similar: the old spelling of 1 and 2.

Each form can have ``subflavors`` and arguments for the loader, which override the arguments of `open`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from feedmill.errors import ConfigError, DataError, did_you_mean
from feedmill.formats.base import Order, View
from feedmill.formats.batches import Fields
from feedmill.formats.sample import Decode, Sample, Source, locate, reraise, split_name, with_names
from feedmill.formats.settings import Fate
from feedmill.samples.description import DATASET_YAML, LOADER_ARGUMENTS, order_of

if TYPE_CHECKING:
    from feedmill.formats.yamls import Document
    from feedmill.samples.fieldmap import FieldMap
    from feedmill.samples.trusted import TrustedCode

PartFilter = Callable[[str], bool]

_CLASS_KEYS = frozenset({"__module__", "__class__"})
_FIX = "Fix the sample, or the dataset's sample_loader."
_STANDARD = ("StandardWebdatasetFactory", "DefaultGenericWebdatasetFactory")


@dataclass(frozen=True, slots=True)
class DatasetView:
    """View of a dataset's samples, as configured by its description.

    Attributes:
        view: Raw samples -> typed samples; None if samples stay as they are.
        decode: The decoder of parts.
        subflavors: Data attached to every sample.
        type_name: Name of the sample type, or ``CrudeSample``.
        part_filter: Returns whether to read a part; None reads all parts.
        arguments: Loader arguments that the description sets, such as ``split_part``.
        order: What they say of the order.
        field_map: The field map as written, if there is one.
    """

    view: View | None
    decode: Decode | None
    subflavors: dict[str, Any]
    type_name: str
    part_filter: PartFilter | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    order: Order = field(default_factory=Order)
    field_map: Mapping[str, str] | None = None

    @property
    def about(self) -> dict[str, Any]:
        """Facts about the samples for `Dataset.describe`."""
        return {"sample_type": self.type_name, "field_map": self.field_map, "subflavors": self.subflavors or None}


def build_view(
    config: Document | Mapping[str, Any],
    *,
    decoder: Decode | None,
    read_meta: Callable[[str], bytes],
    where: str,
    trust: bool = False,
) -> DatasetView:
    """Return the view configured by a description.

    Args:
        config: The parsed description; a `Document` gives errors with line numbers.
        decoder: Decodes parts; None keeps them as bytes.
        read_meta: Reads a file by its path relative to the description's folder.
        where: Path of the description.
        trust: Whether code that the dataset refers to may run.

    Raises:
        ConfigError: A key, type or field is unknown or missing, or the description mixes several forms.
        TrustError: The description refers to code and `trust` is False.
    """
    from feedmill.formats.yamls import Document

    document = config if isinstance(config, Document) else Document(config, where)
    from feedmill.samples.trusted import TrustedCode

    return _Description(document, decoder, TrustedCode(read_meta, where, trust)).build()


class _Description:
    def __init__(self, document: Document, decoder: Decode | None, code: TrustedCode) -> None:
        if not isinstance(document.value, Mapping):
            raise ConfigError(
                f"expected a mapping, found {type(document.value).__name__}",
                file=document.at(),
                fix="Write 'sample_type' and 'field_map', or run 'feedmill prepare' to create the file.",
            )
        self.config: Mapping[str, Any] = document.value
        self.at = document.at
        self.decoder = decoder
        self.code = code

    def build(self) -> DatasetView:
        """Return the view of the description. Raises `ConfigError` and `TrustError`."""
        if "__class__" in self.config and not is_ours(self.config.get("__module__")):
            return self._factory()
        name = self._class_name()
        if name == "CrudeWebdataset":
            self._check_keys({"part_filter"}, "crude data")
            keep = self._part_filter() if "part_filter" in self.config else None
            return self._result(None if keep is None else CrudeView(keep), "CrudeSample", keep)
        if name is None:
            self._check_keys({"sample_type", "field_map", "sample_loader", "part_filter"}, "a typed dataset")
            cls = self._sample_type()
        else:
            self._check_keys({"field_map", "sample_loader", "part_filter"}, name)
            from feedmill.samples.types import sample_type

            cls = sample_type(name)
        return self._typed(cls)

    def _typed(self, cls: type[Any]) -> DatasetView:
        config = self.config
        mapped, loaded = config.get("field_map"), config.get("sample_loader")
        if (mapped is None) == (loaded is None):
            found = "neither" if mapped is None else "both"
            raise self._error(
                "field_map", f"expected 'field_map' or 'sample_loader', found {found}", "Set exactly one of them."
            )
        subflavors = self._subflavors()
        if mapped is not None:
            if config.get("part_filter") is not None:
                raise self._error(
                    "part_filter", "'part_filter' cannot be used with 'field_map'", "Remove 'part_filter'."
                )
            from feedmill.samples.fieldmap import FieldMap

            fields = FieldMap.parse(mapped, cls, where=self.at(["field_map"]))
            return self._result(FieldMapView(cls, fields, subflavors), cls.__name__, fields.parts.__contains__)
        if config.get("part_filter") is None:
            raise self._error(
                "sample_loader", "'sample_loader' needs a 'part_filter'", "Add a list of part names, or a function."
            )
        load = self.code.function(loaded, "sample_loader", self.at(["sample_loader"]))
        keep = self._part_filter()
        return self._result(LoaderView(cls, load, keep, subflavors, str(loaded)), cls.__name__, keep)

    def _factory(self) -> DatasetView:
        """Return the view of a factory of the user's own, see `feedmill.compat.energon.factories`."""
        at = self.at(["__class__"])
        found = self.code.member(self.config, "__class__", at)
        if not hasattr(found, "view_of_description"):
            raise ConfigError(
                f"{self.config.get('__module__')}.{self.config['__class__']} is not a dataset class"
                " that Feedmill knows",
                file=at,
                fix="Derive it from a factory of feedmill.compat.energon, or use 'sample_type' and 'field_map'.",
            )
        self._refuse()
        options = {key: value for key, value in self.config.items() if key not in _CLASS_KEYS | LOADER_ARGUMENTS}
        view: FactoryView = found.view_of_description(self.code.folder.rpartition("/")[0], options)
        keep, about = view.keep, self.config.get("field_map")
        return DatasetView(view, None, dict(view.subflavors), view.type_name, keep, *self._arguments(), about)

    def _result(self, view: View | None, type_name: str, keep: PartFilter | None) -> DatasetView:
        mapped = self.config.get("field_map")
        return DatasetView(view, self.decoder, self._subflavors(), type_name, keep, *self._arguments(), mapped)

    def _arguments(self) -> tuple[dict[str, Any], Order]:
        """Return the loader arguments, and what they say of the order."""
        arguments = {key: value for key, value in self.config.items() if key in LOADER_ARGUMENTS}
        return arguments, order_of(arguments, self._error)

    def _class_name(self) -> str | None:
        """Return None for the standard form, ``CrudeWebdataset``, or the name of an old factory."""
        name, module = self.config.get("__class__"), self.config.get("__module__")
        if name is None or (name in _STANDARD and is_ours(module)):
            return None
        if name == "CrudeWebdataset" and is_ours(module):
            return str(name)
        if str(name).startswith("Metadataset"):
            raise self._error(
                "__class__",
                "this is a metadataset, not the description of a dataset",
                "Open the metadataset file directly.",
            )
        from feedmill.samples.types import sample_type

        try:
            return str(name) if sample_type(str(name)) else None
        except ConfigError as error:
            error.file = self.at(["__class__"])
            raise

    def _sample_type(self) -> type[Any]:
        named = self.config.get("sample_type")
        if not isinstance(named, Mapping) or not isinstance(named.get("__class__"), str):
            raise self._error(
                "sample_type",
                f"expected 'sample_type' with a '__class__', found {named!r}",
                "Write for example 'sample_type: {__module__: megatron.energon, __class__: CaptioningSample}'.",
            )
        at = self.at(["sample_type", "__class__"])
        if is_ours(named.get("__module__")):
            from feedmill.samples.types import sample_type

            try:
                return sample_type(named["__class__"])
            except ConfigError as error:
                error.file = at
                raise
        found = self.code.member(named, "__class__", at)
        if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
            raise ConfigError(f"{named['__class__']!r} is not a dataclass", file=at, fix="Derive from TypedSample.")
        return found

    def _part_filter(self) -> PartFilter:
        given = self.config["part_filter"]
        if isinstance(given, list):
            if not all(isinstance(name, str) for name in given):
                raise self._error("part_filter", f"expected part names, found {given!r}", "Write them in quotes.")
            return frozenset(given).__contains__
        return self.code.function(given, "part_filter", self.at(["part_filter"]))

    def _subflavors(self) -> dict[str, Any]:
        given = self.config.get("subflavors")
        if given is not None and not isinstance(given, Mapping):
            raise self._error("subflavors", f"'subflavors' must be a mapping, found {given!r}", "Write 'name: value'.")
        return dict(given or {})

    def _refuse(self) -> None:
        """Raise `ConfigError` for a setting of Energon that Feedmill refuses."""
        for key in self.config:
            if key in DATASET_YAML.names(Fate.REFUSED):
                words = DATASET_YAML.settings[key].words
                raise self._error(str(key), f"{key!r} is unsupported here: {words}", "Remove it.")

    def _check_keys(self, own: set[str], form: str) -> None:
        self._refuse()
        known = sorted(own | {"subflavors"})
        for key in self.config:
            if key not in own | LOADER_ARGUMENTS | _CLASS_KEYS | {"subflavors"}:
                guess = did_you_mean(str(key), [*known, *sorted(LOADER_ARGUMENTS)])
                raise self._error(str(key), f"unknown key {key!r}{guess}", f"The keys of {form}: {', '.join(known)}.")

    def _error(self, key: str, what: str, fix: str) -> ConfigError:
        return ConfigError(what, file=self.at([key]), fix=fix)


def is_ours(module: Any) -> bool:
    """Return whether a module is Energon's or Feedmill's. Its names are looked up here without importing anything."""
    return module is None or str(module).split(".")[0] == "feedmill" or f"{module}.".startswith("megatron.energon.")


@dataclass(frozen=True, slots=True)
class CrudeView:
    """View that keeps raw samples, with only the parts that `keep` accepts."""

    keep: PartFilter

    def __call__(self, samples: list[Sample]) -> list[Any]:
        return [sample.select(self.keep) for sample in samples]


@dataclass(frozen=True, slots=True)
class FieldMapView:
    """View that converts raw samples to `cls` by a field map."""

    cls: type[Any]
    fields: FieldMap
    subflavors: Mapping[str, Any]

    def __call__(self, samples: list[Sample]) -> list[Any]:
        return [self._one(sample) for sample in samples]

    def columns(self, samples: list[Sample]) -> Fields | None:
        """Return the samples as columns.

        Returns None for a type that is not a `TypedSample`, or that has its own method for batches (`from_samples`).
        """
        from feedmill.samples.types import BASE_FIELDS, TypedSample

        if not issubclass(self.cls, TypedSample) or hasattr(self.cls, "from_samples"):
            return None
        keep = self.fields.parts.__contains__
        base = [_base_fields(sample, sample.source, keep, self.subflavors) for sample in samples]
        values = {name: [one[name] for one in base] for name in BASE_FIELDS}
        return Fields(self.cls, {**values, **self.fields.columns(samples)})

    def _one(self, sample: Sample) -> Any:
        source = sample.source
        base = _base_fields(sample, source, self.fields.parts.__contains__, self.subflavors)
        return self.cls(**{**_declared(self.cls, base), **self.fields.apply(sample)})


@dataclass(frozen=True, slots=True)
class LoaderView:
    """View that converts raw samples to `cls` by the dataset's own function, called with a dict of decoded parts."""

    cls: type[Any]
    load: Callable[[dict[str, Any]], Any]
    keep: PartFilter
    subflavors: Mapping[str, Any]
    name: str

    def __call__(self, samples: list[Sample]) -> list[Any]:
        return [self._one(sample) for sample in samples]

    def _one(self, sample: Sample) -> Any:
        source = sample.source
        base = _base_fields(sample, source, self.keep, self.subflavors)
        raw = {**base, "__shard__": source.file, **{name: sample[name] for name in sample if self.keep(name)}}
        try:
            given = self.load(raw)
        except Exception as error:
            reraise(error, source, self.name, kind="function-failed", fix=_FIX)
        if not isinstance(given, Mapping):
            raise self._failed(source, f"{self.name} returned {type(given).__name__}, expected a dict of fields")
        from feedmill.samples.types import BASE_FIELDS, fields_of

        obligatory, optional = fields_of(self.cls)
        missing = [name for name in obligatory if name not in given]
        unknown = [name for name in given if name not in (*obligatory, *optional, *BASE_FIELDS, "__shard__")]
        if missing or unknown:
            problem = (
                f"did not return the required field {', '.join(missing)}"
                if missing
                else f"returned the unknown field {', '.join(map(str, unknown))}"
            )
            raise self._failed(source, f"{self.name} {problem}: {self.cls.__name__} has {obligatory + optional}")
        own = {name: value for name, value in given.items() if name not in base and name != "__shard__"}
        base["__key__"] = given.get("__key__", sample.key)
        return self.cls(**_declared(self.cls, base), **own)

    def _failed(self, source: Source, what: str) -> DataError:
        return locate(DataError(what, kind="function-failed", fix=_FIX), source)


@dataclass(frozen=True, slots=True)
class FactoryView:
    """View that converts the parts of raw samples, as bytes, with the function of a factory.

    Attributes:
        load: dict of parts and base fields -> sample.
        keep: returns whether a part is read; None for all.
        subflavors: data attached to every sample.
        type_name: name of the sample type.
        name: name of the factory, for errors.
    """

    load: Callable[[dict[str, Any]], Any]
    keep: PartFilter | None
    subflavors: Mapping[str, Any]
    type_name: str
    name: str

    def __call__(self, samples: list[Sample]) -> list[Any]:
        return [self._one(sample) for sample in samples]

    def _one(self, sample: Sample) -> Any:
        source, keep = sample.source, self.keep or (lambda _: True)
        base = _base_fields(sample, source, keep, self.subflavors)
        subflavors = base.pop("__subflavors__")
        raw = {**base, "__shard__": source.file, **{name: sample.raw(name) for name in sample if keep(name)}}
        try:
            made = self.load(raw)
        except Exception as error:
            reraise(error, source, self.name, kind="function-failed", fix="Fix the sample, or the factory.")
        if isinstance(made, dict):
            made["__subflavors__"] = subflavors
        elif hasattr(made, "__subflavors__"):
            made.__subflavors__ = subflavors
        return made


def _base_fields(sample: Sample, source: Source, keep: PartFilter, subflavors: Mapping[str, Any]) -> dict[str, Any]:
    read = with_names(source, [name for name in source.names if keep(split_name(name)[1])])
    return {
        "__key__": sample.key,
        "__restore_key__": ("Webdataset", source.index),
        # Subflavors of the opened dataset override the description's: a metadataset may have added to them.
        "__subflavors__": subflavors if sample.subflavors is None else sample.subflavors,
        "__sources__": (read,),
    }


def _declared(cls: type[Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return the base fields that the type has, since a trusted dataclass may not derive from `TypedSample`."""
    from feedmill.samples.types import TypedSample

    if issubclass(cls, TypedSample):
        return base
    names = {item.name for item in dataclasses.fields(cls)}
    return {name: value for name, value in base.items() if name in names}
