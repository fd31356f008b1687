"""The one registry: name -> expression, parameters with ranges, conventions, source.

To add a rule: its expression in one of the rules files, its record here, its settings in
configs/methods/. Every test that runs over RULES picks it up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from fade_sim.advantage import rules, rules_passk, rules_risk, rules_scaled
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
    group_baseline: bool = True  # needs other rollouts of the group: a singleton gets `singleton`
    singleton: float = 0.0  # weight of the success of a singleton; not 0 only where an engine does so
    continuous: bool = True  # has a meaning for rewards in [0, 1]
    population: bool = True  # has a limit of an infinite group
    reads_batch: bool = False  # the expression takes the statistics of the whole batch
    mixed_only: bool = False  # groups are resampled until 0 < c < G: masses are conditional on that
    at_most: tuple[str, int] | None = None  # (parameter, offset): parameter <= G - offset
    adaptive: bool = False  # read through the controller; no table of its own
    control: str = "none"  # scale control of the adaptive family: none, batch, ema, unit

    def check_size(self, params: dict, group_size: int) -> None:
        """Refuse a group size at which the rule is undefined."""
        if self.at_most and (group_size > 1 or not self.group_baseline):
            name, offset = self.at_most
            if params[name] > group_size - offset:
                limit = f"group_size - {offset}" if offset else "group_size"
                raise InputError(
                    f"{self.name}: {name} is {params[name]}, expected at most {limit} = {group_size - offset}")
        if self.name == "table" and len(params["weights"]) != group_size + 1:
            raise InputError(
                f"table: {len(params['weights'])} rows are for group size {len(params['weights']) - 1}, "
                f"expected {group_size + 1} rows for group size {group_size}")


_PAPER = "arXiv 2607.01490"
_ALPHA = Param(2.0, low=1.0, high=1e3, doc="difficulty exponent; 1 is no focus on hard prompts")
_DELTA = Param(0.5, low=0.0, above=True, doc="sign ratio m_S/m_F; inf: failures weigh nothing")
_NORMALIZE = Param("none", choices=rules.NORMALIZE, doc="which scale the factor C holds fixed")
_DDOF = Param(1, low=0, high=1, integer=True, doc="1: sample std (torch, TRL, verl); 0: population std")
_EPS = Param(1e-6, low=0.0, doc="added to the std (verl 1e-6, TRL 1e-4)")
_VAR_EPS = Param(1e-8, low=0.0, doc="added to the variance")
_K = Param(4, low=1, high=1e3, integer=True, doc="the k of pass@k")
_BETA = Param(2.0, low=0.0, high=500.0, above=True, doc="inverse temperature")
_ON_OFF = ("on", "off")

_RULES = (
    # --- constant baselines: every group updates
    Rule("reinforce", rules.reinforce, "A = r", "arXiv 2506.01347 (PSR; also RAFT/RFT)",
         uniform="all-fail 0, all-pass a full update", group_baseline=False),
    Rule("reinforce_pm1", rules.reinforce_pm1, "A = 2r - 1", "arXiv 2506.01347",
         uniform="all-fail -1, all-pass +1", group_baseline=False),
    Rule("nsr", rules.nsr, "A = r - 1", "arXiv 2506.01347 (negative samples only)",
         uniform="all-fail -1, all-pass 0", group_baseline=False),
    Rule("w_reinforce", rules_scaled.w_reinforce, "A = lam for a success, -1 for a failure", "arXiv 2506.01347",
         {"lam": Param(0.1, low=0.0, doc="weight of a success")},
         uniform="all-fail -1, all-pass lam", group_baseline=False,
         note="public code touches only scores of exactly 1 and 0"),
    Rule("baseline", rules.baseline, "A = r - b", "constant baseline: slope-free probe of the sign axis",
         {"b": Param(0.5, low=0.0, high=1.0, doc="constant baseline")},
         uniform="all-fail -b, all-pass 1-b", group_baseline=False),
    # --- group mean
    Rule("rloo", rules.rloo, "A = (r - rbar) G/(G-1)", "arXiv 2402.14740", denominator="G - 1 in the baseline"),
    Rule("rloo_verl", rules.rloo, "A = (r - rbar) G/(G-1)", "verl, loop version",
         denominator="G - 1 in the baseline", singleton=1.0,
         note="keeps the raw reward of a singleton; verl's vectorised version and TRL give 0"),
    Rule("dr_grpo", rules.dr_grpo, "A = r - rbar", "arXiv 2503.20783",
         note="mean only: what the FADE paper calls GRPO; rloo times (G-1)/G; the paper also divides the loss "
         "by a constant length; verl keeps the raw reward of a singleton, here it gets 0"),
    Rule("asym_re", rules_scaled.asym_re, "A = r - rbar - dv", "arXiv 2506.20520",
         {"dv": Param(-0.1, low=-1.0, high=1.0, doc="shift of the baseline; below 0 is success-biased")},
         uniform="-dv", note="on-policy dv is inert; off-policy it is a KL term"),
    Rule("wapo", rules_scaled.wapo, "A = max(r - rbar, 0)", "arXiv 2606.16154",
         note="the paper's loss divides by G times the maximal length, with a one-sided clip"),
    Rule("asym_delta", rules.asym_delta, "A = r - rbar; failures / delta", f"{_PAPER} (AsymGRPO)",
         {"delta": _DELTA}, note="not the AsymGRPO of arXiv 2604.04894; slope q + p/delta moves with delta"),
    Rule("asym_pure", rules.asym_pure, "asym_delta / ((1-rbar) + rbar/delta)", "slope 1 as G -> inf",
         {"delta": _DELTA}, note="at finite G its slope depends on delta: for sign claims use asym_pure_loo"),
    Rule("asym_pure_loo", rules.asym_pure_loo, "w_S = (1-x)/n, w_F = (x/delta)/n, n = (1-x) + x/delta",
         "x: solve rate of the other rollouts; slope 1 at every G", {"delta": _DELTA}),
    # --- mean and std of the group
    Rule("grpo", rules.grpo, "A = (r - rbar)/(std + eps)", "arXiv 2402.03300", {"ddof": _DDOF, "eps": _EPS},
         ddof="ddof (default 1)", eps="on the std (default 1e-6)",
         note="mean and std: m_S = m_F = sqrt(pq), not pq; ddof is a factor sqrt((G-1)/G)"),
    Rule("grpo_verl", partial(rules.grpo, ddof=1, eps=1e-6), "A = (r - rbar)/(std + 1e-6)", "verl core_algos",
         ddof="1", eps="1e-6 on the std", singleton=1 / (1 + 1e-6), note="a singleton keeps its raw reward"),
    Rule("grpo_trl", partial(rules.grpo, ddof=1, eps=1e-4), "A = (r - rbar)/(std + 1e-4)", "TRL grpo_trainer",
         ddof="1", eps="1e-4 on the std"),
    Rule("grpo_openrlhf", partial(rules.grpo, ddof=1, eps=1e-9), "A = (r - rbar)/(std + 1e-9)", "OpenRLHF group_norm",
         ddof="1", eps="1e-9 on the std", note="there a singleton is NaN, here it gets 0"),
    Rule("grpo_nemo", partial(rules_scaled.grpo_loo, eps=1e-6), "A = (r - mean of others)/(std of others + 1e-6)",
         "NeMo RL default", ddof="1, over the other rollouts", eps="1e-6, where their std is > 0", continuous=False,
         note="not sign balanced: the only success of a group stays unnormalised"),
    Rule("grpo_open_instruct", partial(rules.grpo, ddof=0, eps=1e-8), "A = (r - rbar)/(std + 1e-8)",
         "open-instruct 'standard'", ddof="0", eps="1e-8 on the std"),
    Rule("dapo", rules.grpo, "A = (r - rbar)/(std + eps), groups with 0 < c < G only", "arXiv 2503.14476",
         {"ddof": _DDOF, "eps": _EPS}, uniform="resampled until mixed", ddof="ddof (default 1)",
         eps="on the std (default 1e-6)", mixed_only=True,
         note="masses are per kept prompt; costs 1/(1 - p^G - q^G) prompts; token-mean loss, clip .2/.28, no KL"),
    Rule("f_grpo", rules_scaled.f_grpo, "A = (1-rbar)^gamma (r - rbar)/(std + eps)",
         "arXiv 2602.06717 (secondary source)",
         {"gamma": Param(1.0, low=0.0, high=1e3, doc="focus on hard prompts"), "ddof": _DDOF, "eps": _EPS},
         ddof="ddof (default 1)", eps="on the std (default 1e-6)"),
    Rule("qae", rules_scaled.qae, "A = (r - [rbar > 1-K])/sd", "arXiv 2509.22611 (secondary source)",
         {"k": Param(0.4, low=0.0, high=1.0, doc="quantile K of the baseline")}, ddof="0", continuous=False,
         note="a baseline only: the slope is grpo's"),
    Rule("grpo_lead", rules_scaled.grpo_lead, "grpo; successes x W(rbar), failures x W(1-rbar)", "arXiv 2504.09696",
         ddof="1", eps="1e-6 on the std",
         note="W(x) = .4 + 1.1/(1 + e^(10(x-.75))); the paper also shapes r by length"),
    Rule("asym_power_gu", rules_scaled.asym_power_gu, "A = (q/p)^b_pos; -(p/q)^b_neg, at rbar",
         "arXiv 2604.04894 (secondary source)",
         {"b_pos": Param(0.9, low=0.0, high=1.0, doc="exponent of a success"),
          "b_neg": Param(0.4, low=0.0, high=1.0, doc="exponent of a failure")}, continuous=False,
         note="that paper's AsymGRPO; b_pos = b_neg = .5 is grpo with ddof 0"),
    # --- statistics of the whole batch
    Rule("reinforce_pp", rules_scaled.reinforce_pp, "A = (r - batch mean)/sqrt(batch variance + eps)",
         "arXiv 2501.03262",
         {"eps": _VAR_EPS}, uniform="updates like any other group", ddof="1, over the batch", eps="on the variance",
         denominator="batch", group_baseline=False, reads_batch=True, note="verl; OpenRLHF uses ddof 0"),
    Rule("reinforce_pp_baseline", rules_scaled.reinforce_pp_baseline, "A = (r - rbar)/sqrt(var(r - rbar) + eps)",
         "arXiv 2501.03262", {"eps": _VAR_EPS}, ddof="1, over the batch", eps="on the variance", reads_batch=True),
    Rule("lite_ppo", rules_scaled.lite_ppo, "A = (r - rbar)/(batch std + eps)", "arXiv 2508.08221",
         {"eps": _EPS}, ddof="1, over the batch", eps="on the std", reads_batch=True, note='TRL scale_rewards="batch"'),
    Rule("gpg", rules_scaled.gpg, "A = a (r - rbar)", "arXiv 2504.02546",
         {"variant": Param("paper", choices=("paper", "verl"), doc="a = B/(B-M), or verl's 1/mean reward")},
         reads_batch=True, note="verl's a is not the paper's"),
    Rule("bnpo", rules_scaled.bnpo, "A = (r - rbar)/Beta(rbar; al, be)", "arXiv 2506.02864", eps="1/Beta at most 1e6",
         reads_batch=True, note="al = be = 1 is dr_grpo"),
    Rule("a_grae", rules_scaled.a_grae,
         "grpo x ((1-P)/(2(1-sqrt rbar)) + P/(2 sqrt rbar)); successes x min(1, P/threshold)",
         "arXiv 2602.05548", {"threshold": Param(1.0, low=0.0, high=1.0, above=True, doc=".5 in some of its runs"),
                              "eps": _EPS}, ddof="1", eps="in every denominator", reads_batch=True,
         note="moves from easy to hard as P rises, the opposite of FADE"),
    # --- pass@k
    Rule("pass_at_k_s", rules_passk.pass_at_k_s, "A = k; +k rho(G-1, c, k-1) for a failure",
         "arXiv 2505.15201 (PKPO s)",
         {"k": _K}, uniform="all-fail 0, all-pass k", group_baseline=False, continuous=False, at_most=("k", 0),
         note="failures of a solved group are reinforced"),
    Rule("pass_at_k_loo", rules_passk.pass_at_k_loo, "PKPO s minus its leave-one-out baseline",
         "arXiv 2505.15201 (PKPO sloo)", {"k": _K}, uniform="all-fail 0, all-pass -k/(G-1)", continuous=False,
         at_most=("k", 1)),
    Rule("pass_at_k_loo1", rules_passk.pass_at_k_loo1, "A = k C(G-c, k-1)/C(G-1, k-1); 0 for a failure",
         "arXiv 2505.15201 (PKPO sloo-1)", {"k": _K}, uniform="all-pass 0 (k = 1: 1)", continuous=False,
         group_baseline=False, at_most=("k", 0)),
    Rule("pass_at_k_coded", rules_passk.pass_at_k_coded, "loo1 without k, minus its leave-one-out mean",
         "public code of arXiv 2602.02710 ('pkpo')", {"k": _K}, continuous=False, at_most=("k", 0),
         note="a mix of pass@k and pass@(k-1)"),
    Rule("pass_at_k_tang", rules_passk.pass_at_k_tang, "A = G for the only success, else 0",
         "arXiv 2503.19595 (secondary source)", continuous=False, population=False, group_baseline=False,
         note="k = G; verl's grpo_passk also divides by the std (biased)"),
    Rule("pass_at_k_chen", rules_passk.pass_at_k_chen, "A = ((1-rho) - [failure] C(G-c-1,k-1)/C(G-1,k-1))/s",
         "arXiv 2508.10751", {"k": _K, "std": Param("on", choices=_ON_OFF, doc="divide by sqrt(rho(1-rho))")},
         eps="1e-6 on s", continuous=False, at_most=("k", 0), note="only rewards 0 and 1 are mapped"),
    Rule("mahdavi", rules_passk.mahdavi, "A = k (1-rbar)^(k-1) x base", "openreview Dn3gk9auxd",
         {"k": _K, "base": Param("mean", choices=("mean", "std", "rft"), doc="base advantage")},
         uniform="0 (rft, k = 1: all-pass 1)", note="a plug-in: biased at finite G", continuous=False),
    Rule("power", rules.power, "A = C (1-rbar)^(alpha-1) (r - rbar)", _PAPER,
         {"alpha": _ALPHA, "normalize": _NORMALIZE}, note="finite groups soften the focus on hard prompts"),
    Rule("power_unbiased", rules.power_unbiased, "w_S = C(G-c,alpha)/C(G-1,alpha), w_F = c/(G-c) w_S",
         "unbiased p q^alpha at every G", {"alpha": Param(2, low=1, high=1e3, integer=True, doc="integer, <= G-1")},
         continuous=False, at_most=("alpha", 1), note="alpha = 1 is rloo"),
    Rule("power_asym", rules.power_asym, "A = C (1-rbar)^(alpha-1) (r - rbar); failures / delta", _PAPER,
         {"alpha": _ALPHA, "delta": _DELTA, "normalize": _NORMALIZE}, note="FADE at frozen gains"),
    # --- risk-sensitive and likelihood-like
    Rule("log_mean_exp", rules_risk.log_mean_exp, "A = (e^(b r)/mean e^(b r) - 1)/b", "arXiv 2509.24261 (RS-GRPO)",
         {"beta": _BETA}, continuous=False),
    Rule("entropic_loo", rules_risk.entropic_loo, "A = e^(b r)/(mean of others) - 1", "public code",
         {"beta": _BETA}, continuous=False, note="fixed b; the KL = ln 2 rule has no solution once rbar >= 1/2"),
    Rule("maxrl", rules_risk.maxrl, "A = r/rbar", "arXiv 2602.02710 (the paper's estimator)",
         uniform="all-fail 0, all-pass 1", group_baseline=False, continuous=False),
    Rule("maxrl_coded", rules_risk.maxrl_coded, "A = (r - rbar)/rbar", "public code of arXiv 2602.02710",
         note="order G-1, not G"),
    Rule("maxrl_std", rules_risk.maxrl_std, "A = (r - rbar)/((std + eps)(rbar + eps))",
         "public code of arXiv 2602.02710 ('misc')", {"eps": _EPS}, ddof="0", eps="on the std and on the mean",
         continuous=False, note="divides by the std and the mean: not the maxrl estimator"),
    Rule("linear_r", rules_risk.linear_r, "A = r/rbar - 1", "arXiv 2602.11128 (secondary source)",
         uniform="all-fail -1, all-pass 0", continuous=False),
    Rule("sqrt_r", rules_risk.sqrt_r, "A = (r/rbar - 1)/sqrt(1-rbar)", "arXiv 2602.11128 (secondary source)",
         uniform="all-fail -1 (not verified), all-pass 0", continuous=False),
    Rule("tsallis", rules_risk.tsallis, "A = r rbar^-kappa", "arXiv 2604.25907",
         {"kappa": Param(0.5, low=0.0, high=1.0, doc="0: plain RL, 1: log-likelihood"),
          "centred": Param("off", choices=_ON_OFF, doc="r - rbar in place of r")},
         uniform="all-fail 0, all-pass 1 (centred: 0)", group_baseline=False, continuous=False),
    # --- FADE, its scale controls, a user's own table
    Rule("fade", None, "power_asym(alpha(phat), delta(Hhat))", _PAPER, {"normalize": _NORMALIZE}, adaptive=True,
         note="alpha = clip(1.5 (1-phat)/phat, 1, 3), delta = clip(1 + Hhat - H*, .3, 1); see the controller"),
    Rule("scale_only", None, "dr_grpo * (sum|A_fade| / sum|A_dr_grpo|)", "control: FADE's scale, batch by batch",
         {"normalize": _NORMALIZE}, adaptive=True, control="batch"),
    Rule("scale_ema", None, "dr_grpo * ema(sum|A_fade| / sum|A_dr_grpo|)", "control: FADE's scale, smoothed (.05)",
         {"normalize": _NORMALIZE}, adaptive=True, control="ema"),
    Rule("fade_unit", None, "fade / (sum|A_fade| / sum|A_dr_grpo|)", "control: FADE's schedule, scale removed",
         {"normalize": _NORMALIZE}, adaptive=True, control="unit"),
    Rule("table", None, "w(c) from your own rows c = 0..G", "your file, array or function",
         {"weights": Param(None, doc="(G+1, 2): signed weight of a success, of a failure; or a file; "
                           "in a config also module:function")},
         uniform="as given", group_baseline=False, continuous=False, population=False),
)
RULES = MappingProxyType({rule.name: rule for rule in _RULES})
