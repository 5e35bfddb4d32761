"""docs/horovod.md says of every public name of Horovod's what became of it."""

import re
import types
from pathlib import Path

import horovod.tensorflow
import horovod.tensorflow.elastic
import horovod.tensorflow.keras
import horovod.tensorflow.keras.callbacks
import horovod.tensorflow.keras.elastic
import pytest

import gradcomp.horovod as hvd

PAGE = Path(__file__).parents[1] / "docs/horovod.md"
MODULES = (horovod.tensorflow, horovod.tensorflow.keras, horovod.tensorflow.keras.callbacks)
ELASTIC = (horovod.tensorflow.elastic, horovod.tensorflow.keras.elastic)


def public_names() -> set[str]:
    """What Horovod defines: no modules, and nothing that it imports from elsewhere."""
    names = set()
    for module in MODULES:
        for name in dir(module):
            value = getattr(module, name)
            origin = getattr(value, "__module__", None) or "horovod"
            imported = isinstance(value, types.ModuleType) or not origin.startswith("horovod")
            if not name.startswith("_") and not imported:
                names.add(name)
    names |= {name for module in ELASTIC for name in module.__all__}
    # A comparison of versions, which horovod.common lends to every module.
    return names - {"is_version_greater_equal_than"}


def table() -> dict[str, str]:
    rows = re.findall(
        r"^\| (`.*?) \| (passed through|replaced|refused) \|", PAGE.read_text(), re.MULTILINE
    )
    return {name: kind for names, kind in rows for name in re.findall(r"`(\w+)`", names)}


def ours(name: str):
    homes = (hvd, hvd.callbacks, hvd.elastic)
    return next(getattr(home, name) for home in homes if hasattr(home, name))


def horovods(name: str):
    return [getattr(m, name) for m in (*MODULES, *ELASTIC) if hasattr(m, name)]


def test_the_table_is_complete() -> None:
    assert public_names() - set(table()) == set()
    assert set(table()) - public_names() == set()


@pytest.mark.parametrize("name", table())
def test_the_table_is_true(name) -> None:
    kind = table()[name]
    if kind == "passed through":
        assert ours(name) in horovods(name)
    elif kind == "replaced":
        assert ours(name) not in horovods(name)
        assert name == "Compression" or ours(name).__doc__
    else:
        with pytest.raises(NotImplementedError, match=f"hvd.{name} is not supported"):
            ours(name)()


def test_what_is_exported_is_listed() -> None:
    added = {"FeedbackState", "callbacks", "elastic"}
    assert set(hvd.__all__) - added <= set(table())
