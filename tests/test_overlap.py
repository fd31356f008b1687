"""PAK-06: evaluation problems inside the training set."""

import pytest

from fade_sim.errors import InputError
from fade_sim.overlap import remove_overlap


def test_equal_but_for_case_and_white_space_is_removed_a_stock_phrase_is_kept():
    benchmarks = {"aime": ["Find the remainder when N is divided by 7."], "other": ["Prove it."]}
    train = ["find the  REMAINDER when\nN is divided by 7.", "Find the remainder when N is divided by 1000."]
    assert remove_overlap(train, benchmarks) == ([1], {"aime": 1, "other": 0})


def test_a_problem_of_two_benchmarks_counts_in_each_and_repeats_count():
    assert remove_overlap(["a", "A ", "b"], {"x": ["a"], "y": ["a", "c"]}) == ([2], {"x": 2, "y": 2})


def test_problems_are_texts():
    with pytest.raises(InputError, match="problem is None, expected text"):
        remove_overlap([None], {"x": ["a"]})
