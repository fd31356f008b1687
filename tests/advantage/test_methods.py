"""Making and describing methods; tables of one's own; every refusal says what was expected."""

import json
import math

import numpy as np
import pytest

from fade_sim.advantage import RULES, Method, describe, from_function, make, methods, resolve, weight_table

ROWS = [[0.0, -1.0], [2.0, -0.5], [1.0, 0.0]]


def test_same_parameters_same_key():
    assert make("power", alpha=2) == make("power", alpha=2.0) == make("power", alpha=np.float32(2), normalize="none")
    assert len({make("power", alpha=2), make("power"), make("power", alpha=3)}) == 2
    assert isinstance(make("power_unbiased", alpha=3.0).params["alpha"], int)


def test_methods_is_the_registry_and_each_is_described():
    assert methods() == tuple(RULES) and len(set(methods())) == len(methods())
    for name in methods():
        text = describe(name)
        assert text["name"] == name and text["equation"] and text["source"] and text["uniform_groups"]
        for key, param in RULES[name].params.items():
            assert f"{key} = {param.default}" in text["parameters"] and param.doc


def test_describe_tells_the_grpos_apart():
    assert "sample std" in describe("grpo")["parameters"] and describe("grpo")["eps"] == "on the std (default 1e-6)"
    assert describe("grpo_open_instruct")["ddof"] == "0" and describe("grpo_trl")["eps"].startswith("1e-4")
    assert "what the FADE paper calls GRPO" in describe("dr_grpo")["note"]
    assert describe(make("lite_ppo"))["reads"] == "the whole batch"


@pytest.mark.parametrize(("method", "label"), [
    (make("dr_grpo"), "dr_grpo"), (make("power", alpha=1.5), "power(1.5)"), (make("baseline"), "baseline(0.5)"),
    (make("power_asym", alpha=2, delta=math.inf), "power_asym(alpha=2, delta=inf)"), (make("grpo"), "grpo"),
    (make("grpo", eps=0.5), "grpo(eps=0.5)"), (make("pass_at_k_loo1", k=8), "pass_at_k_loo1(8)"),
    (make("power", normalize="peak"), "power(alpha=2, normalize=peak)"), (make("table", weights=ROWS), "table(G=2)"),
])
def test_labels(method, label):
    assert method.label == label


def test_resolve_gives_fade_at_its_gains():
    method = resolve(make("fade", normalize="half"), 2.0, 0.5)
    assert method == make("power_asym", alpha=2.0, delta=0.5, normalize="half")
    # C_half = 2; one success of four: 2 * (3/4)^2, -2 * 3/4 * 1/4 / .5
    np.testing.assert_allclose(weight_table(method, 4)[1], [1.125, -0.75], rtol=1e-15)


# --- refusals ---------------------------------------------------------------------------------------

BAD = [
    ("powr", {}, "unknown method 'powr'; did you mean 'power'?"),
    ("drgrpo", {}, "unknown method 'drgrpo'; did you mean 'dr_grpo'?"),
    ("zzzz", {}, "unknown method 'zzzz'; known: reinforce, "),
    (None, {}, "unknown method None"),
    ("power", {"alfa": 2}, "power: unknown parameter 'alfa'; did you mean 'alpha'?"),
    ("dr_grpo", {"alpha": 2}, "dr_grpo: unknown parameter 'alpha'; it takes none"),
    ("power", {"alpha": 0.99}, "power: alpha is 0.99, expected a number at least 1 and at most 1000"),
    ("power", {"alpha": math.nan}, "power: alpha is nan, expected"),
    ("power", {"alpha": math.inf}, "power: alpha is inf, expected"),
    ("power", {"alpha": "2"}, "power: alpha is '2', expected a number"),
    ("power", {"alpha": None}, "power: alpha is None, expected a number"),
    ("power", {"alpha": True}, "power: alpha is True, expected a number"),
    ("power", {"alpha": [2]}, r"power: alpha is \[2\], expected a number"),
    ("power", {"normalize": "peek"}, "power: normalize is 'peek'; did you mean 'peak'?"),
    ("power", {"normalize": 1}, "power: normalize is 1; known: none, peak, mean, half"),
    ("power_unbiased", {"alpha": 1.5}, "power_unbiased: alpha is 1.5, expected an integer at least 1"),
    ("asym_delta", {"delta": 0}, "asym_delta: delta is 0, expected a number above 0"),
    ("asym_delta", {"delta": -1}, "asym_delta: delta is -1"),
    ("asym_delta", {"delta": math.nan}, "asym_delta: delta is nan"),
    ("baseline", {"b": 1.1}, "baseline: b is 1.1, expected a number at least 0 and at most 1"),
    ("baseline", {"b": -0.1}, "baseline: b is -0.1"),
    ("grpo", {"ddof": 2}, "grpo: ddof is 2, expected an integer at least 0 and at most 1"),
    ("grpo", {"eps": -1e-9}, "grpo: eps is -1e-09, expected a number at least 0"),
    ("pass_at_k_loo1", {"k": 0}, "pass_at_k_loo1: k is 0, expected an integer at least 1"),
    ("log_mean_exp", {"beta": 0}, "log_mean_exp: beta is 0, expected a number above 0"),
    ("table", {}, "table: weights is missing"),
    ("table", {"weights": None}, "table: weights is missing"),
]


@pytest.mark.parametrize(("name", "params", "message"), BAD)
def test_bad_method_is_named(name, params, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")) as caught:
        make(name, **params)
    assert "\n" not in str(caught.value)


def test_edges_of_ranges_are_in():
    make("power", alpha=1), make("power", alpha=1000), make("asym_delta", delta=5e-324), make("baseline", b=0)
    make("baseline", b=1), make("asym_delta", delta=math.inf), make("grpo", eps=0)


def test_overflow_is_refused_not_returned():
    with pytest.raises(ValueError, match=r"asym_delta\(1e-309\) overflows at group size 4"), np.errstate(over="ignore"):
        weight_table(make("asym_delta", delta=1e-309), 4)


# --- a table of one's own ---------------------------------------------------------------------------


@pytest.fixture(params=["array", "list", "csv", "headed csv", "txt", "json", "npy"])
def source(request, tmp_path):
    path = tmp_path / f"w.{request.param.split()[-1]}"
    match request.param:
        case "array":
            return np.array(ROWS)
        case "list":
            return ROWS
        case "csv":
            path.write_text("0, -1\n2,-0.5\n\n1,0\n")
        case "headed csv":
            path.write_text("success,failure\n0,-1\n2,-0.5 # half\n1,0\n")
        case "txt":
            path.write_text("0 -1\n2 -0.5\n1 0\n")
        case "json":
            path.write_text(json.dumps(ROWS))
        case "npy":
            np.save(path, ROWS)
    return path


def test_table_from_every_source(source):
    for given in (source, str(source)) if not isinstance(source, (np.ndarray, list)) else (source,):
        method = make("table", weights=given)
        assert isinstance(method, Method) and hash(method) == hash(make("table", weights=ROWS))
        # cell [0, 0] belongs to no rollout; [2, 1] neither
        assert weight_table(method, 2).tolist() == [[0, -1], [2, -0.5], [1, 0]]


def test_cells_that_no_rollout_has_are_zero():
    assert weight_table(make("table", weights=np.full((3, 2), 7.0)), 2).tolist() == [[0, 7], [7, 7], [7, 0]]


@pytest.mark.parametrize(("weights", "message"), [
    (np.zeros((3, 3)), r"shape \(3, 3\), expected \(G\+1, 2\)"),
    (np.zeros(4), r"shape \(4,\), expected \(G\+1, 2\)"),
    (np.zeros((1, 2)), r"shape \(1, 2\)"),
    ([[1, 2], [3]], "expected rows of two numbers"),
    ([["a", "b"], ["c", "d"]], "expected rows of two numbers"),
    ({"a": 1}, "expected rows of two numbers"),
    ([[0, 0], [math.nan, 0]], "row 1 is not finite"),
    ([[0, math.inf], [0, 0]], "row 0 is not finite"),
    ("nowhere.csv", "nowhere.csv: no such file"),
])
def test_bad_tables(weights, message):
    with pytest.raises(ValueError, match=message):
        make("table", weights=weights)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("w.json", b"{", "cannot be read"), ("w.npy", b"junk", "cannot be read"),
    ("w.csv", b"1,x\n2,3\n", "cannot be read"),
    ("w.csv", b"", "shape"), ("w.csv", b"1,2\n3\n", "expected rows of two numbers"),
    ("w.csv", b"\xff\xfe\n", "cannot be read"),
    ("w.json", b'{"a": 1}', "expected rows of two numbers"),
])
def test_unreadable_files(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        make("table", weights=path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_pickled_npy_is_not_loaded(tmp_path):
    path = tmp_path / "w.npy"
    np.save(path, np.array([[object(), 1]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="cannot be read"):
        make("table", weights=path)


def test_wrong_number_of_rows_names_both_group_sizes():
    with pytest.raises(ValueError, match="3 rows are for group size 2, expected 5 rows for group size 4"):
        weight_table(make("table", weights=ROWS), 4)


# --- a function of one's own ------------------------------------------------------------------------


def test_function_becomes_its_table():
    def pasted_grpo(rewards):
        return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)

    for G in (2, 7, 8):
        ours = weight_table(make("grpo"), G)
        np.testing.assert_allclose(weight_table(from_function(pasted_grpo, G), G), ours, rtol=1e-13, atol=1e-9)


@pytest.mark.parametrize(("function", "message"), [
    (lambda r: r / r.mean(), "expected as many finite numbers"),  # all-fail: 0/0
    (lambda r: r.sum(), "expected as many finite numbers"),
    (lambda r: np.arange(1.0 * len(r)), "weighs equal rewards of one group differently at c = 0"),
    (lambda r: r + r[0], "depends on the order of the rollouts at c = 1"),
    (lambda r: r["x"], "failed on rewards .*: IndexError"),
    (lambda r: None, "returned|failed"),
])
def test_function_that_is_no_rule(function, message):
    with pytest.raises(ValueError, match=message), np.errstate(all="ignore"):
        from_function(function, 4)
