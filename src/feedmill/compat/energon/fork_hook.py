"""Callbacks before and after this process forks, as Energon offers them to classes of task encoders and stores."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

__all__ = [
    "DataclassForkMixin",
    "ForkMixin",
    "WeakCallbacks",
    "after_in_child_fork_hook",
    "after_in_parent_fork_hook",
    "before_fork_hook",
]

Callback = Callable[..., None]


class WeakCallbacks:
    """Functions and methods to call, until they or their objects are deleted. Each is called once per `run`."""

    def __init__(self) -> None:
        self._hooks: dict[Any, Callable[[], Callback | None]] = {}

    def add_hook(self, callable: Callback, make_persistent: bool = False) -> None:
        """Add a function or a bound method.

        Args:
            callable: the function.
            make_persistent: keep it alive; needed for lambdas.
        """
        # The objects of methods may be unhashable, as most dataclasses are.
        is_method = isinstance(callable, MethodType)
        key = (id(callable.__self__), callable.__func__) if isinstance(callable, MethodType) else id(callable)
        forget = partial(self._forget, key)
        if make_persistent:
            self._hooks[key] = lambda: callable
        elif is_method:
            self._hooks[key] = weakref.WeakMethod(callable, forget)
        else:
            self._hooks[key] = weakref.ref(callable, forget)

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Call all of them with these arguments, in the order in which they were added."""
        for reference in list(self._hooks.values()):
            callback = reference()
            if callback is not None:
                callback(*args, **kwargs)

    def _forget(self, key: Any, _reference: Any) -> None:
        self._hooks.pop(key, None)


_before, _in_child, _in_parent = WeakCallbacks(), WeakCallbacks(), WeakCallbacks()
os.register_at_fork(before=_before.run, after_in_child=_in_child.run, after_in_parent=_in_parent.run)


def before_fork_hook(callable: Callback, make_persistent: bool = False) -> None:
    """Call a function before this process forks; see `WeakCallbacks.add_hook`."""
    _before.add_hook(callable, make_persistent)


def after_in_child_fork_hook(callable: Callback, make_persistent: bool = False) -> None:
    """Call a function in a child after this process forked; see `WeakCallbacks.add_hook`."""
    _in_child.add_hook(callable, make_persistent)


def after_in_parent_fork_hook(callable: Callback, make_persistent: bool = False) -> None:
    """Call a function in this process after it forked; see `WeakCallbacks.add_hook`."""
    _in_parent.add_hook(callable, make_persistent)


class _Hooks:
    """The methods that both mixins have. Only overridden ones are called."""

    def __before_fork__(self) -> None:
        """Override to do something before this process forks."""

    def __after_in_child_fork__(self) -> None:
        """Override to do something in the child."""

    def __after_in_parent_fork__(self) -> None:
        """Override to do something in the parent."""

    def __post_init__(self) -> None:
        for name, callbacks in (
            ("__before_fork__", _before),
            ("__after_in_child_fork__", _in_child),
            ("__after_in_parent_fork__", _in_parent),
        ):
            if getattr(type(self), name) is not getattr(_Hooks, name):
                callbacks.add_hook(getattr(self, name))


class ForkMixin(_Hooks):
    """Base of classes with methods for forks: ``__before_fork__``, ``__after_in_child_fork__``, ..."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__post_init__()


@dataclass
class DataclassForkMixin(_Hooks):
    """`ForkMixin` for dataclasses. One with its own ``__post_init__`` must call that of this class."""
