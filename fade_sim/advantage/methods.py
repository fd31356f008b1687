"""A method is a rule of the registry with its parameters: made, checked, described."""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fade_sim.advantage import rules
from fade_sim.advantage.registry import RULES, Rule
from fade_sim.errors import InputError, nearest


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
        defining = ("alpha", "delta", "b", "k", "beta")
        shown = {k: f"{v:g}" if isinstance(v, (int, float)) else str(v) for k, v in self.items
                 if k in defining or v != self.rule.params[k].default}
        if len(shown) == 1 and next(iter(shown)) in defining:
            return f"{self.name}({next(iter(shown.values()))})"
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in shown.items())})" if shown else self.name

    def expression(self, r, g: rules.Group, batch=None):
        """Signed weight of a rollout of reward r in a group with statistics g.

        batch: a `rules_scaled.Batch`, for the rules that read the whole batch.
        """
        params = self.params
        if "normalize" in params:
            params["normalize"] = rules.NORMALIZE.index(params["normalize"])
        if self.rule.reads_batch:
            return self.rule.expression(r, g, batch, **params)
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
            raise InputError("table: weights is missing, expected G+1 rows (weight of a success, of a failure) "
                             "or a file of them")
        return Method(name, (("weights", _read_weights(params["weights"])),))
    return Method(name, tuple((key, p.check(name, key, params.get(key, p.default))) for key, p in rule.params.items()))


def parse(text: str) -> Method:
    """A method from its label: `power`, `power(3)` (its first parameter), `power_asym(alpha=2, delta=.5)`.

    >>> parse("power_asym(alpha=2, delta=.5)").params["delta"]
    0.5
    """
    name, bracket, inside = text.strip().partition("(")
    if bracket and not inside.endswith(")"):
        raise InputError(f"method {text!r}: expected name(value) or name(key=value, ...)")
    params: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in inside.removesuffix(")").split(","))):
        key, equals, value = (x.strip() for x in part.partition("="))
        if not equals:
            key, value = next(iter(RULES[name].params), "value") if name in RULES else "value", key
        params[key] = float(value) if _is_number(value) else value
    return make(name, **params)


def load_function(spec: str):
    """The function behind `module:function`, looked up from the current folder first."""
    module, _, name = spec.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise InputError(f"{spec}: cannot be loaded ({type(error).__name__}: {error})") from None
    finally:
        sys.path.remove("")
    if not callable(found):
        raise InputError(f"{spec}: is not a function")
    return found


def resolve(method: Method, alpha: float, delta: float) -> Method:
    """The static power_asym that an adaptive method stands for at the gains (alpha, delta)."""
    return make("power_asym", alpha=alpha, delta=delta, normalize=method.params.get("normalize", "none"))


def from_function(function, group_size: int) -> Method:
    """The table of a user's own advantage function, rewards (G,) of 0.0 and 1.0 -> advantages (G,).

    Every group composition is tried, in two orders. Raises InputError where the function returns
    something else, is not finite, or weighs two successes (or failures) of one group differently.
    """
    where = getattr(function, "__name__", "function")
    rows = np.zeros((group_size + 1, 2))
    for c in range(group_size + 1):
        for order in (slice(None), slice(None, None, -1)):
            rewards = np.array([1.0] * c + [0.0] * (group_size - c))[order]
            try:
                out = np.asarray(function(rewards.copy()), dtype=np.float64)
            except Exception as error:
                raise InputError(f"{where}: failed on rewards {rewards.tolist()}: "
                                 f"{type(error).__name__}: {error}") from None
            if out.shape != rewards.shape or not np.isfinite(out).all():
                raise InputError(f"{where}: returned {out!r} for {group_size} rewards, expected as many finite numbers")
            for column, reward in ((0, 1.0), (1, 0.0)):
                values = out[rewards == reward]
                if values.size and np.ptp(values) > 1e-9 * max(1.0, np.abs(values).max()):
                    raise InputError(f"{where}: weighs equal rewards of one group differently at c = {c}: "
                                     "it is no function of (reward, successes)")
                if values.size and order == slice(None):
                    rows[c, column] = values[0]
                elif values.size and not np.isclose(values[0], rows[c, column], rtol=1e-9, atol=1e-12):
                    raise InputError(f"{where}: depends on the order of the rollouts at c = {c}")
    return make("table", weights=rows)


def describe(method: Method | str) -> dict[str, str]:
    """What a method is, to answer "which GRPO is this?": equation, source, conventions, edge cases."""
    rule = method.rule if isinstance(method, Method) else make(method, **_example(method)).rule
    return {
        "name": rule.name, "equation": rule.equation, "source": rule.source, "ddof": rule.ddof, "eps": rule.eps,
        "denominator": rule.denominator, "uniform_groups": rule.uniform,
        "singletons": _singletons(rule),
        "reads": "the whole batch" if rule.reads_batch else "its own group",
        "parameters": "; ".join(f"{k} = {p.default}: {p.doc}" for k, p in rule.params.items()) or "none",
        "note": rule.note,
    }


def _singletons(rule: Rule) -> str:
    if rule.singleton:
        return f"a success {rule.singleton:.7g}, a failure 0 (the raw reward)"
    return "weight 0" if rule.group_baseline else "as any other rollout"


def _example(name: str) -> dict:
    return {"weights": ((0.0, 0.0), (0.0, 0.0))} if name == "table" else {}


def _read_weights(source) -> tuple[tuple[float, float], ...]:
    """Rows of a user's own table, from an array or a .csv, .txt, .json or .npy file."""
    where = "table: weights"
    if isinstance(source, (str, Path)):
        where = f"table: {source}"
        source = _load(Path(source), where)
    try:
        raw = np.asarray(source)
        if raw.dtype.kind not in "iuf":
            raise TypeError
        rows = raw.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{where}: expected rows of two numbers (weight of a success, of a failure)") from None
    if rows.ndim != 2 or rows.shape[1] != 2 or len(rows) < 2:
        raise InputError(f"{where}: shape {rows.shape}, expected (G+1, 2) with G >= 1")
    if not np.isfinite(rows).all():
        bad = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise InputError(f"{where}: row {bad} is not finite")
    return tuple((float(s), float(f)) for s, f in rows)


def _load(path: Path, where: str):
    import json

    try:
        if not path.is_file():
            raise InputError(f"{where}: no such file")
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            return json.loads(text)
        lines = [line.split("#")[0].replace(",", " ").split() for line in text.splitlines()]
        rows = [line for line in lines if line]
        if rows and not any(_is_number(cell) for cell in rows[0]):
            rows = rows[1:]  # a header
        return [[float(cell) for cell in row] for row in rows]
    except InputError:
        raise
    except (OSError, ValueError, EOFError, OverflowError, RecursionError) as error:
        raise InputError(f"{where}: cannot be read ({str(error).splitlines()[0]})") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
