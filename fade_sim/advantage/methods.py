"""The one registry of methods: name -> expression, parameters with ranges, conventions, source.

To add a method: its expression in rules.py, its record here, its settings in configs/methods/.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fade_sim.advantage import rules
from fade_sim.errors import InputError, nearest


@dataclass(frozen=True)
class Param:
    """A parameter: default, closed range (an open lower end if `above`), integer or one of `choices`."""

    default: Any
    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # low itself is excluded
    integer: bool = False
    choices: tuple[str, ...] = ()
    doc: str = ""

    @property
    def expected(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        kind = "an integer" if self.integer else "a number"
        low = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
        high = "" if self.high == math.inf else f" and at most {self.high:g}"
        return kind if self.low == -math.inf else f"{kind} {low}{high}"

    def check(self, method: str, name: str, value: Any) -> Any:
        """The value in its own type, or an InputError that says what was expected."""
        wrong = InputError(f"{method}: {name} is {value!r}, expected {self.expected}")
        if self.choices:
            if value not in self.choices:
                raise InputError(f"{method}: {name} is {value!r}{nearest(value, self.choices)}")
            return value
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
            raise wrong
        value = float(value)
        if math.isnan(value) or value < self.low or value > self.high or (self.above and value == self.low):
            raise wrong
        if self.integer:
            if value != math.floor(value):
                raise wrong
            return int(value)
        return value


@dataclass(frozen=True)
class Rule:
    """One entry of the registry. `expression` is None for tables and for adaptive methods."""

    name: str
    expression: Callable | None
    equation: str
    source: str
    params: dict[str, Param] = field(default_factory=dict)
    uniform: str = "weight 0"  # what all-fail and all-pass groups get
    ddof: str = "no std"
    eps: str = "none"
    denominator: str = "group size G"
    note: str = ""
    group_baseline: bool = True  # needs other rollouts of the group: a singleton gets 0
    continuous: bool = True  # has a meaning for rewards in [0, 1]
    adaptive: bool = False  # read through the controller; no table of its own
    control: str = "none"  # scale control of the adaptive family: none, batch, ema, unit

    def check_size(self, params: dict, group_size: int) -> None:
        """Refuse a group size at which the rule is undefined."""
        if self.name == "power_unbiased" and group_size > 1 and params["alpha"] > group_size - 1:
            raise InputError(
                f"power_unbiased: alpha is {params['alpha']}, expected at most group_size - 1 = {group_size - 1}"
            )
        if self.name == "table" and len(params["weights"]) != group_size + 1:
            raise InputError(
                f"table: {len(params['weights'])} rows are for group size {len(params['weights']) - 1}, "
                f"expected {group_size + 1} rows for group size {group_size}"
            )


_ALPHA = Param(2.0, low=1.0, high=1e3, doc="difficulty exponent; 1 is no focus on hard prompts")
_DELTA = Param(0.5, low=0.0, above=True, doc="sign ratio m_S/m_F; inf: failures weigh nothing")
_NORMALIZE = Param("none", choices=rules.NORMALIZE, doc="which scale the factor C holds fixed")
_PAPER = "arXiv 2607.01490"

_RULES = (
    Rule("reinforce", rules.reinforce, "A = r", "arXiv 2506.01347 (PSR; also RAFT/RFT)",
         uniform="all-fail 0, all-pass a full update", group_baseline=False),
    Rule("reinforce_pm1", rules.reinforce_pm1, "A = 2r - 1", "arXiv 2506.01347",
         uniform="all-fail -1, all-pass +1", group_baseline=False),
    Rule("nsr", rules.nsr, "A = r - 1", "arXiv 2506.01347 (negative samples only)",
         uniform="all-fail -1, all-pass 0", group_baseline=False),
    Rule("baseline", rules.baseline, "A = r - b", "constant baseline: slope-free probe of the sign axis",
         {"b": Param(0.5, low=0.0, high=1.0, doc="constant baseline")},
         uniform="all-fail -b, all-pass 1-b", group_baseline=False),
    Rule("rloo", rules.rloo, "A = (r - rbar) G/(G-1)", "arXiv 2402.14740", denominator="G - 1 in the baseline",
         note="verl's loop version keeps the raw reward of a singleton; here and in TRL it gets 0"),
    Rule("dr_grpo", rules.dr_grpo, "A = r - rbar", "arXiv 2503.20783",
         note="mean only: what the FADE paper calls GRPO; rloo times (G-1)/G"),
    Rule("grpo", rules.grpo, "A = (r - rbar)/(std + eps)", "arXiv 2402.03300",
         {"ddof": Param(1, low=0, high=1, integer=True, doc="1: sample std (torch, TRL, verl); 0: population std"),
          "eps": Param(1e-6, low=0.0, doc="added to the std (verl 1e-6, TRL 1e-4)")},
         ddof="ddof (default 1)", eps="on the std (default 1e-6)",
         note="mean and std: m_S = m_F = sqrt(pq), not pq"),
    Rule("asym_delta", rules.asym_delta, "A = r - rbar; failures / delta", f"{_PAPER} (AsymGRPO)",
         {"delta": _DELTA}, note="not the AsymGRPO of arXiv 2604.04894; slope q + p/delta moves with delta"),
    Rule("asym_pure", rules.asym_pure, "asym_delta / ((1-rbar) + rbar/delta)", "slope 1 as G -> inf",
         {"delta": _DELTA}, note="at finite G its slope depends on delta: for sign claims use asym_pure_loo"),
    Rule("asym_pure_loo", rules.asym_pure_loo, "w_S = (1-x)/n, w_F = (x/delta)/n, n = (1-x) + x/delta",
         "x: solve rate of the other rollouts; slope 1 at every G", {"delta": _DELTA}),
    Rule("power", rules.power, "A = C (1-rbar)^(alpha-1) (r - rbar)", _PAPER,
         {"alpha": _ALPHA, "normalize": _NORMALIZE}, note="finite groups soften the focus on hard prompts"),
    Rule("power_unbiased", rules.power_unbiased, "w_S = C(G-c,alpha)/C(G-1,alpha), w_F = c/(G-c) w_S",
         "unbiased p q^alpha at every G", {"alpha": Param(2, low=1, high=1e3, integer=True, doc="integer, <= G-1")},
         continuous=False, note="alpha = 1 is rloo"),
    Rule("power_asym", rules.power_asym, "A = C (1-rbar)^(alpha-1) (r - rbar); failures / delta", _PAPER,
         {"alpha": _ALPHA, "delta": _DELTA, "normalize": _NORMALIZE}, note="FADE at frozen gains"),
    Rule("fade", None, "power_asym(alpha(phat), delta(Hhat))", _PAPER, {"normalize": _NORMALIZE}, adaptive=True,
         note="alpha = clip(1.5 (1-phat)/phat, 1, 3), delta = clip(1 + Hhat - H*, .3, 1); see the controller"),
    Rule("scale_only", None, "dr_grpo * (sum|A_fade| / sum|A_dr_grpo|)", "control: FADE's scale, batch by batch",
         {"normalize": _NORMALIZE}, adaptive=True, control="batch"),
    Rule("scale_ema", None, "dr_grpo * ema(sum|A_fade| / sum|A_dr_grpo|)", "control: FADE's scale, smoothed (.05)",
         {"normalize": _NORMALIZE}, adaptive=True, control="ema"),
    Rule("fade_unit", None, "fade / (sum|A_fade| / sum|A_dr_grpo|)", "control: FADE's schedule, scale removed",
         {"normalize": _NORMALIZE}, adaptive=True, control="unit"),
    Rule("table", None, "w(c) from your own rows c = 0..G", "your file or array",
         {"weights": Param(None, doc="(G+1, 2): signed weight of a success, of a failure; or a file")},
         uniform="as given", group_baseline=False, continuous=False),
)
RULES = MappingProxyType({rule.name: rule for rule in _RULES})


@dataclass(frozen=True)
class Method:
    """A rule with its parameters, checked. Hashable: use it as a key."""

    name: str
    items: tuple[tuple[str, Any], ...] = ()

    @property
    def rule(self) -> Rule:
        return RULES[self.name]

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.items)

    @property
    def label(self) -> str:
        """Short name with the parameters that define the method or differ from their defaults."""
        if self.name == "table":
            return f"table(G={len(self.params['weights']) - 1})"
        shown = {k: f"{v:g}" if isinstance(v, (int, float)) else str(v) for k, v in self.items
                 if k in ("alpha", "delta", "b") or v != self.rule.params[k].default}
        if len(shown) == 1 and next(iter(shown)) == self.items[0][0]:
            return f"{self.name}({next(iter(shown.values()))})"
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in shown.items())})" if shown else self.name

    def expression(self, r, g: rules.Group):
        """Signed weight of a rollout of reward r in a group with statistics g."""
        params = self.params
        if "normalize" in params:
            params["normalize"] = rules.NORMALIZE.index(params["normalize"])
        return self.rule.expression(r, g, **params)


def methods() -> tuple[str, ...]:
    """Names of all methods, in the order of the registry."""
    return tuple(RULES)


def make(name: str, **params) -> Method:
    """A method by name. Raises InputError (a ValueError) on an unknown name or parameter, or a value out of range.

    >>> make("power", alpha=3).label
    'power(3)'
    """
    if name not in RULES:
        raise InputError(f"unknown method {name!r}{nearest(name, RULES)}")
    rule = RULES[name]
    for key in params:
        if key not in rule.params:
            if not rule.params:
                raise InputError(f"{name}: unknown parameter {key!r}; it takes none")
            raise InputError(f"{name}: unknown parameter {key!r}{nearest(key, rule.params)}")
    if name == "table":
        if params.get("weights") is None:
            raise InputError("table: weights is missing, expected a (G+1, 2) array or a file of it")
        return Method(name, (("weights", _read_weights(params["weights"])),))
    return Method(name, tuple((key, p.check(name, key, params.get(key, p.default))) for key, p in rule.params.items()))


def resolve(method: Method, alpha: float, delta: float) -> Method:
    """The static power_asym that an adaptive method stands for at the gains (alpha, delta)."""
    return make("power_asym", alpha=alpha, delta=delta, normalize=method.params.get("normalize", "none"))


def describe(method: Method | str) -> dict[str, str]:
    """What a method is, to answer "which GRPO is this?": equation, source, conventions, edge cases."""
    rule = method.rule if isinstance(method, Method) else make(method, **_example(method)).rule
    return {
        "name": rule.name, "equation": rule.equation, "source": rule.source, "ddof": rule.ddof, "eps": rule.eps,
        "denominator": rule.denominator, "uniform_groups": rule.uniform,
        "singletons": "weight 0" if rule.group_baseline else "as any other rollout",
        "parameters": "; ".join(f"{k} = {p.default}: {p.doc}" for k, p in rule.params.items()) or "none",
        "note": rule.note,
    }


def _example(name: str) -> dict:
    return {"weights": ((0.0, 0.0), (0.0, 0.0))} if name == "table" else {}


def _read_weights(source) -> tuple[tuple[float, float], ...]:
    """Rows of a user's own table, from an array or a .csv, .txt, .json or .npy file."""
    where = "table: weights"
    if isinstance(source, (str, Path)):
        where = f"table: {source}"
        source = _load(Path(source), where)
    try:
        rows = np.asarray(source, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{where}: expected rows of two numbers (weight of a success, of a failure)") from None
    if rows.ndim != 2 or rows.shape[1] != 2 or len(rows) < 2:
        raise InputError(f"{where}: shape {rows.shape}, expected (G+1, 2) with G >= 1")
    if not np.isfinite(rows).all():
        bad = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise InputError(f"{where}: row {bad} is not finite")
    return tuple((float(s), float(f)) for s, f in rows)


def _load(path: Path, where: str):
    import json

    if not path.is_file():
        raise InputError(f"{where}: no such file")
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        text = path.read_text()
        if path.suffix == ".json":
            return json.loads(text)
        lines = [line.split("#")[0].replace(",", " ").split() for line in text.splitlines()]
        rows = [line for line in lines if line]
        if rows and not _is_number(rows[0][0]):
            rows = rows[1:]  # a header
        return [[float(cell) for cell in row] for row in rows]
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{where}: cannot be read ({str(error).splitlines()[0]})") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
