"""Numbers beside those of a prototype: worked distances, and what is said of them."""

import math

import pytest

from fade_sim.experiments.claim import Number
from fade_sim.experiments.numbers import beside_prototype, errors_apart


@pytest.mark.parametrize("row, expected", [
    # half-width .04: standard error .02; with .015 jointly .025; gap .1 - .0005 of rounding
    (Number("x", 0.6, 0.56, 0.64, 10, prototype=".500+-.015"), 0.0995 / 0.025),
    (Number("x", 0.6, 0.56, 0.64, 10, prototype=".5"), 0.05 / 0.02),  # one digit: .45 to .55
    (Number("x", -0.024, -0.028, -0.020, 10, prototype="-.024+-.001"), 0.0),
    (Number("x", 1.00001, prototype="1.00001"), 0.0),  # exact
    (Number("x", 1.001, prototype="1.00001"), math.inf),
    (Number("x", 0.6, 0.56, 0.64, 10, prototype="225 (1175 against 950)"), None),
    (Number("x", 0.6, 0.56, 0.64, 10), None),
    (Number("x", math.nan, prototype=".5"), None),
])
def test_distance_in_standard_errors(row, expected):
    assert errors_apart(row) == (expected if expected is None else pytest.approx(expected))


def test_every_number_that_is_far_is_named_with_its_reason():
    near = Number("a: near", 0.5, 0.4, 0.6, 10, prototype=".5")
    far = [Number(f"{name}: far", 0.9, 0.8, 1.0, 10, prototype=".5+-.01") for name in ("a", "b", "a too")]
    silent = Number("c", 0.5, 0.4, 0.6, 10)
    said = beside_prototype([near, *far, silent], (("a", "other worlds"), ("a too", "never reached")))
    assert len(said) == 3 and said[0].startswith("1 of 4 numbers")
    assert said[1] == "a: far 0.9 against .5\u00b1.01; a too: far 0.9 against .5\u00b1.01: other worlds."
    assert said[2] == "b: far 0.9 against .5\u00b1.01: not explained."
    assert beside_prototype([silent]) == ()
