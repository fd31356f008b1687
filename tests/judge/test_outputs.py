"""When is an output the expected one?"""

import pytest

from llm.judge import values
from llm.judge.compare import difference, same_value, shown


@pytest.mark.parametrize(("got", "expected", "same"), [
    ("5\n", "5", True), ("5 \n\n", "5", True), ("  5", "5", True), ("1 2", "1  2", True), ("a b", "a  b", False),
    ("5.0", "5", True), ("1e3", "1000", True), ("0.1", ".10", True), ("0.30000000000000004", "0.3", False),
    ("1\n2", "1\n2\n", True), ("1\n2", "1 2", False), ("1", "1\n1", False), ("yes", "YES", False),
    ("a\r\nb", "a\nb", True), ("1\n\n2", "1\n2", False), ("", "", True), ("", "0", False), ("nan", "nan", True),
    ("NaN 1", "nan 1", False), ("1 x", "1.0 x", False), ("-0", "0", True),
    (str(10**40 + 1), str(10**40), False), (str(10**40) + ".0", str(10**40), True), ("9" * 6000, "9" * 6000, True),
    ("9" * 6000, "9" * 5999 + "8", False), ("1e999999999", "5", False), ("Infinity", "inf", True),
], ids=shown)
def test_standard_output(got, expected, same):
    """As LiveCodeBench: lines stripped, then text, then exact decimals."""
    assert (difference(got, expected) is None) == same


def test_tolerance_is_for_fractions_alone():
    assert difference("0.30000000000000004", "0.3", 1e-9) is None and difference("0.31", "0.3", 1e-9) is not None
    assert difference("1000001", "1000000", 1e-3) is not None  # whole numbers are exact
    assert difference("1000001.0", "1000000", 1e-3) is None
    assert difference("nan", "1.0", 1.0) is not None and difference("inf", "1.0", 1.0) is not None
    assert same_value(0.1 + 0.2, 0.3, 1e-9) and not same_value(0.1 + 0.2, 0.3)
    assert same_value([1, (2.0000001,)], (1, [2]), 1e-6) and not same_value(10**400, 1.5, 1e-6)


@pytest.mark.parametrize(("got", "expected", "same"), [
    ((1, [2, (3,)]), [1, [2, [3]]], True), ({1, 2}, [1, 2], False), ({"a": (1,)}, {"a": [1]}, True), (1, True, True),
    (1.0, 1, True), ("1", 1, False), (None, False, False), ({1: 2}, {"1": 2}, False), ([1], [1, 1], False),
    (float("nan"), float("nan"), False), (2**70, 2**70 + 1, False), ("", None, False),
], ids=shown)
def test_values(got, expected, same):
    assert same_value(got, expected) == same


@pytest.mark.parametrize("value", [
    None, True, 0, -1, 2**53, -(2**53), 10**5000, 0.1, float("inf"), "", "\ud800 \x00", [], [1, [2]], (), (1, (2,)),
    {1, 2}, frozenset({1}), {1: 2, (3,): {"a": None}}, b"\x00\xff", 1 + 2j, {"i": "0x1"}, {"d": 1},
], ids=lambda v: type(v).__name__)
def test_values_survive_their_way_out(value):
    got = values.load(values.dump(value))
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize("text", [
    '{"x": 1}', '{"i": 1}', '{"t": 3}', '{"s": [[1]]}', '{"d": [[1]]}', "[" * 100_000, "", "nothing", "1" * 5000,
    '{"i": "0x1", "d": []}', '{"b": "zz"}', '{"c": [1]}' + "x"], ids=shown)
def test_what_is_no_value_is_refused(text):
    with pytest.raises(ValueError):
        values.load(text)


def test_keys_of_one_hash_do_not_take_the_reader_long():
    """Outside the sandbox nothing bounds its time: 20 000 integers of one hash, each of a different value."""
    import json
    import time

    keys = [hex(i * (2**61 - 1)) for i in range(20_000)]
    began = time.process_time()
    for text in (json.dumps({"s": [{"i": k} for k in keys]}), json.dumps({"d": [[{"i": k}, 0] for k in keys]})):
        with pytest.raises(ValueError, match="collide"):
            values.load(text)
    assert time.process_time() - began < 2.0
    assert len(values.load(values.dump(set(range(50_000))))) == 50_000


def test_types_that_cannot_leave():
    class Equal(int):
        def __eq__(self, other):
            return True

    for value in (Equal(3), object(), [Equal(3)], range(3), iter([])):
        with pytest.raises(TypeError, match="cannot leave the sandbox"):
            values.dump(value)


def test_what_is_shown_is_short():
    assert shown("a\nb" * 100, 40).startswith("a\\nb") and len(shown("a\nb" * 100, 40)) <= 40
    assert shown(10**5000) == "(int too long to show)" and len(shown(list(range(1000)))) <= 60
    got = difference("1\n2\n4\n", "1\n2\n3\n")
    assert got == ("line 3: 3", "line 3: 4")
    assert difference("1\n2\n", "1\n2\n3\n") == ("line 3: 3", "end of output after 2 lines")
