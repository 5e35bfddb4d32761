"""Spec strings, such as "topk:density=0.01,values=(quantize:bits=4)", to and from options.

A spec is a name, then after a colon options separated by commas. A nested spec that has options
stands in parentheses.
"""

from typing import Any

from gradcomp.errors import CodecError

_WORDS = {"none": None, "true": True, "false": False}


def parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """(name, options) of a spec; a nested spec stays a string.

    Raises:
      CodecError: the text is not a spec.
    """
    name, colon, rest = text.strip().partition(":")
    options: dict[str, Any] = {}
    for part in _split(rest, ",", text) if colon else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or not equals or not value:
            raise CodecError(f"{part.strip()!r} in the spec {text!r} must read option=value")
        if key in options:
            raise CodecError(f"the spec {text!r} gives {key} twice")
        options[key] = _value(value)
    return name.strip(), options


def format_spec(name: str, options: dict[str, Any]) -> str:
    """The spec of a name and options; the inverse of `parse_spec`."""
    parts = [f"{key}={_text(value)}" for key, value in options.items()]
    return f"{name}:{','.join(parts)}" if parts else name


def split_outside(text: str, separator: str) -> list[str]:
    """The parts of `text` between the separators that stand outside of parentheses.

    Raises:
      CodecError: parentheses do not match.
    """
    return _split(text, separator, text)


def _split(rest: str, separator: str, text: str) -> list[str]:
    parts, depth = [""], 0
    for character in rest:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            break
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth:
        raise CodecError(f"the parentheses in the spec {text!r} do not match")
    return parts


def _value(text: str) -> Any:
    if text.startswith("(") and text.endswith(")"):
        return text[1:-1]
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _text(value: Any) -> str:
    for text, meaning in _WORDS.items():
        if value is meaning:
            return text
    return f"({value})" if ":" in str(value) else str(value)
