"""Python values as JSON and back, types kept. Runs inside and outside: standard library alone.

JSON has no tuple, set, bytes, complex number, key that is not text, and no integer that is exact for
every reader: those are objects of one key. Nothing is ever unpickled, and no class is looked up.
"""

import json

EXACT = 1 << 53


def dump(value) -> str:
    """JSON text of a value of plain types. Raises TypeError on any other, subclasses of plain types included."""
    return json.dumps(_plain(value))


def load(text):
    """The value that `dump` wrote. Raises ValueError on text that it cannot have written."""
    try:
        return _value(json.loads(text, parse_int=_short_int))
    except (RecursionError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a value: {type(error).__name__}") from None


def _short_int(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("a long integer that is not in hexadecimal")
    return int(digits)


def _plain(value):
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if -EXACT < value < EXACT else {"i": hex(value)}
    if kind is list:
        return [_plain(v) for v in value]
    if kind is dict:
        return {"d": [[_plain(k), _plain(v)] for k, v in value.items()]}
    if kind is complex:
        return {"c": [value.real, value.imag]}
    if kind in (bytes, bytearray):
        return {"b": bytes(value).hex()}
    if kind in (tuple, set, frozenset):
        return {{tuple: "t", set: "s", frozenset: "f"}[kind]: [_plain(v) for v in value]}
    raise TypeError(f"a value of type {kind.__name__} cannot leave the sandbox")


def _value(json_value):
    if type(json_value) is list:
        return [_value(v) for v in json_value]
    if type(json_value) is not dict:
        return json_value
    ((tag, inner),) = json_value.items()
    if tag == "i":
        return int(inner, 16)
    if tag == "d":
        pairs = [(_value(k), _value(v)) for k, v in inner]
        _refuse_collisions([k for k, _ in pairs])
        return dict(pairs)
    if tag == "c":
        return complex(*inner)
    if tag == "b":
        return bytes.fromhex(inner)
    elements = [_value(v) for v in inner]
    if tag in ("s", "f"):
        _refuse_collisions(elements)
    return {"t": tuple, "s": set, "f": frozenset}[tag](elements)


def _refuse_collisions(keys):
    """Many keys of one hash would take the reader quadratic time, which is outside every limit of a program."""
    hashes = sorted(map(hash, keys))
    if any(a == b for a, b in zip(hashes, hashes[64:])):  # noqa: B905
        raise ValueError("keys that collide")
