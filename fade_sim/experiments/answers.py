"""What a reader asks first, answered from the numbers of scores.json alone: a short line per claim, and the questions
that take two of them. Where a quick run lacks a number there is no answer, never half of one.
"""

import textwrap

_SLOPE = "dH_F/dlog(m_S/m_F), asym_pure_loo"  # of the claim on identity, per switch
_UNTUNED = " for all"  # regimes of the claim on FADE that are repeated at one learning rate for every rule
IN_LIST = 260  # characters of a reason, where there is no shorter line


class Numbers(dict):
    """The numbers of a claim by name, as text for sentences. Raises KeyError on one that was not measured."""

    def __init__(self, entry: dict):
        super().__init__((n["name"], n) for n in entry["numbers"])

    def value(self, name: str) -> float:
        value = self[name]["value"]
        if not isinstance(value, (int, float)):
            raise KeyError(name)
        return value

    def said(self, name: str) -> str:
        """Value and interval; two digits of an exact number."""
        value, n = self.value(name), self[name]
        if n["low"] is None:
            return f"{value:.2g}"
        return f"{_signed(value)} [{_signed(n['low'])}, {_signed(n['high'])}]"

    def bear(self, *words: bool) -> None:
        """Raises KeyError where the numbers do not bear the words of a sentence: it is then not said."""
        if not all(words):
            raise KeyError("these numbers say something else")

    def signs(self, end: str, start: str = "", without: str = "\n") -> tuple[int, int, int]:
        """(above 0, below 0, all) of the numbers, one per regime, whose name after the regime is start...end."""
        rows = [n for name, n in self.items() if name.endswith(end) and name.partition(": ")[2].startswith(start)
                and without not in name and not name.partition(": ")[0].endswith(_UNTUNED)]
        known = [n for n in rows if n["low"] is not None]
        return sum(n["low"] > 0 for n in known), sum(n["high"] < 0 for n in known), len(rows)

    def least(self, end: str) -> str:
        """The regime whose number of that name is lowest."""
        known = {name: n["value"] for name, n in self.items() if name.endswith(end) and n["low"] is not None}
        if not known:
            raise KeyError(end)
        return min(known, key=known.get).removesuffix(end)


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\u2212")


def _off(n: dict) -> bool:
    """Whether an interval leaves out 0."""
    return n["low"] > 0 or n["high"] < 0


def _decomposition(n: Numbers) -> str:
    error = n.said("tables rebuilt from sign, difficulty and scale: largest error")
    return (f"{n.value('rules with a table'):g} rules rebuilt from sign, difficulty and scale differ from themselves "
            f"by {error} at most. It ends where a rule reads more of a rollout than a reward of 0 or 1.")


def _identity(n: Numbers) -> str:
    apart = n.said("no switch: distance of heads in exact expectation")
    stale, ratio = (n.said(f"{switch}: {_SLOPE}")
                    for switch in ("stale", "stale + importance ratio"))
    n.bear(n.value("no switch: distance of heads in exact expectation") < 1e-9, _off(n[f"stale: {_SLOPE}"]))
    return (f"Without sampling noise, rules of any sign train the same policy: their heads differ by {apart} of their "
            f"norm. Old rollouts break it most: entropy within failures then changes by {stale} nats per unit of "
            f"log(m_S/m_F); with the importance ratio by {ratio}.")


def _entropy(n: Numbers) -> str:
    fresh, stale = n.said("head: slope of H at .7"), n.said("stale 10, lr 20: slope of H at .7")
    most = n.least(": slope of H at .7")
    ends = n.least(": H at the end, baseline(0) - baseline(1)")
    n.bear(n["stale 10, lr 20: slope of H at .7"]["low"] > 0, n[f"{most}: slope of H at .7"]["high"] < 0)
    return (f"Rules that differ in sign alone, at solve rate .7, in nats per unit of log(m_S/m_F): on-policy {fresh}, "
            f"with rollouts 10 updates old {stale}, so that there failure-biased rules lose entropy. In the claimed "
            f"direction at most {n.said(f'{most}: slope of H at .7')} ({most}). Successes alone against failures "
            "alone do show it at the end of training: up to "
            f"{n.said(f'{ends}: H at the end, baseline(0) - baseline(1)')} nats ({ends}).")


def _rank(n: Numbers) -> str:
    fresh, stale, ratio = (n.said(f"{regime}: excess of asym_delta(0.3)")
                           for regime in ("on-policy, lr 40", "stale 30, lr 40", "ratio, lr 40"))
    low = n.said("ratio, lr 20: excess of asym_delta(0.3)")
    return ("Rank-1 energy of asym_delta(0.3), which weighs failures 3.3 times as much, above that of dr_grpo, at lr "
            f"40: on-policy {fresh}, with rollouts 30 updates old {stale}, with the importance ratio as well {ratio}, "
            f"a collapse in some seeds and none in others; with the ratio at lr 20 {low}.")


def _difficulty(n: Numbers) -> str:
    gain = {G: n.value(f"signal to noise at G = {G}: alpha 3, p = 0.1")
            / n.value(f"signal to noise at G = {G}: alpha 1, p = 0.1") for G in (8, 16, 64)}
    first, last = (n.said(f"default, SGD: {what}, power(3) - dr_grpo")
                   for what in ("mean held-out pass@1 over the run", "final held-out pass@100"))
    return (f"At solve rate .1 alpha 3 has {gain[8]:.3f} times the signal to noise of alpha 1 in groups of 8, "
            f"{gain[16]:.3f} in 16, {gain[64]:.3f} in 64. From which signal on it pays depends on what is called "
            f"signal: from 0 to never. In training (default world, SGD) alpha 3 gives up {first} pass@1 over the run "
            f"for {last} pass@100 at its end.")


def _fade(n: Numbers) -> str:
    earlier, later, regimes = n.signs(" - fade", "steps to 98% of the best static peak")
    better, worse, _ = n.signs("", "mean pass@1 over the run, fade - ", without="scale_ema")
    above, below, _ = n.signs("mean pass@1 over the run, fade - scale_ema")
    return (f"Each rule at its own best learning rate, {regimes} regimes: FADE is near its peak earlier than the "
            f"static rule with the highest peak in {earlier}, later in {later}, not told apart in "
            f"{regimes - earlier - later}. Its mean pass@1 is above that of the best static rule in {better} and "
            f"below in {worse}; against scale_ema, which is dr_grpo times FADE's own scale, above in {above} and "
            f"below in {below}.")


def _generalisation(n: Numbers) -> str:
    above, below, regimes = n.signs("asym_delta(0.3) - dr_grpo", "held-out pass@1 at train")
    stale, table = (n.said(f"{regime}: held-out pass@1 at train pass@1 0.7, asym_delta(0.3) - dr_grpo")
                    for regime in ("stale 30, lr 10", "per-prompt table"))
    n.bear(below == 2, above > 0)
    return (f"At equal training pass@1, held-out pass@1 of asym_delta(0.3) is below that of dr_grpo in {below} of "
            f"{regimes} regimes, both with old rollouts ({stale} at staleness 30, lr 10), and above it in {above}, "
            f"most with a table per prompt ({table}).")


_SHORT = {"decomposition": _decomposition, "identity": _identity, "entropy": _entropy, "rank": _rank,
          "difficulty": _difficulty, "fade": _fade, "generalisation": _generalisation}


def short(name: str, entry: dict) -> str:
    """One or two sentences on a claim; the start of its reason where they lack a number."""
    try:
        return _SHORT[name](Numbers(entry))
    except KeyError:
        return textwrap.shorten(entry["because"], IN_LIST, placeholder=" ...")


def questions(claims: dict) -> list[tuple[str, str]]:
    """(question, answer) pairs, those whose claims were run. claims: the contents of scores.json, by name."""
    out = []
    for question, answer, names in _QUESTIONS:
        try:
            out.append((question, answer(*(Numbers(claims[name]) for name in names))))
        except KeyError:
            continue
    return out


def _delta_entropy(entropy: Numbers, rank: Numbers) -> str:
    sign = entropy.said("head: slope of H at .7")
    fresh, old, ratio = (rank.said(f"{regime}: entropy (nats) of asym_delta(0.3) - dr_grpo")
                         for regime in ("on-policy, lr 40", "stale 30, lr 40", "ratio, lr 20"))
    what = "entropy (nats) of asym_delta(0.3) - dr_grpo"
    rank.bear(rank[f"stale 30, lr 40: {what}"]["high"] < rank[f"on-policy, lr 40: {what}"]["low"],
              rank[f"on-policy, lr 40: {what}"]["high"] < 0, not _off(entropy["head: slope of H at .7"]))
    return ("A little while rollouts are fresh, more when they are old, and a delta below 1 does it, not the delta "
            f"above 1 that is accused. At the end of training at lr 40 delta .3 has {fresh} nats against dr_grpo "
            f"on-policy and {old} with rollouts 30 updates old and no correction ({ratio} with the importance ratio, "
            f"lr 20). On-policy it is not the sign: rules that differ in sign alone differ by {sign} nats per unit of "
            "log(m_S/m_F) at equal solve rate; delta also makes the steps larger and shifts them to easier prompts. "
            "The claimed direction shows for success-only against failure-only weights: see the claim on entropy.")


def _delta_rank(n: Numbers) -> str:
    low, one, high = (n.value(f"stale 30, lr 40: rank-1 energy at the end, {rule}")
                      for rule in ("asym_delta(0.3)", "dr_grpo", "asym_delta(2)"))
    fresh, ratio, large = (n.said(f"{regime}: excess of asym_delta(0.3)")
                           for regime in ("on-policy, lr 40", "ratio, lr 20", "ratio, lr 40"))
    n.bear(low > one > high, n["stale 30, lr 40: excess of asym_delta(0.3)"]["low"] > 0.1,
           n["on-policy, lr 40: excess of asym_delta(0.3)"]["high"] < 0.1,
           n["ratio, lr 20: excess of asym_delta(0.3)"]["high"] < 0.1)
    return (f"Below 1, with old rollouts: at staleness 30, lr 40, delta .3 ends at a rank-1 energy of {low:.2f}, "
            f"dr_grpo at {one:.2f}, delta 2 at {high:.2f}. On-policy it does not ({fresh} against dr_grpo), nor with "
            f"the importance ratio at lr 20 ({ratio}); at lr 40 the ratio leaves {large}.")


def _delta_when(n: Numbers) -> str:
    start, order = n.value("Lambda at which growth starts"), n.said("rank correlation of the excess with Lambda")
    low, middle, high = (n.said(f"excess rank-1 energy, Lambda {span}") for span in ("0 to 1.2", "1.2 to 4", "above 4"))
    adam = n.said("Adam .02, stale 30: excess of asym_delta(0.3)")
    n.bear(abs(start - 1) < 0.001, n["excess rank-1 energy, Lambda above 4"]["low"] > 0.1)
    return ("When Lambda is above 1 at the start: learning rate x staleness x the largest eigenvalue of E[(m_F - "
            f"m_S) Fisher], for plain SGD without correction. Growth of a small disturbance starts at {start:.5f} "
            "(predicted: 1). What it leads to is a tendency, not a threshold: in a grid of learning rates, staleness "
            f"and delta the excess rank-1 energy is {low} below Lambda 1.2, {middle} up to 4 and {high} beyond, rank "
            f"correlation {order}. Under Adam at staleness 30 the excess is {adam}.")


def _in_my_run(n: Numbers) -> str:
    name = "Lambda from sampled scores over the exact one, cross-validated"
    found, low, high = n.value(name), n[name]["low"], n[name]["high"]
    return (f"Lambda can be estimated from sampled gradients of single rollouts: here {found:.3f} [{low:.3f}, "
            f"{high:.3f}] of the exact one. `fade-llm train CONFIG --probe.stability true` writes `Lambda`, `alarm` "
            "(above 1) and `delta_safe`, the smallest delta that keeps it below 1, into metrics.jsonl, over all "
            "trained parameters and with Adam's own metric; about a thousand rollouts are needed.")


def _fade_static(n: Numbers) -> str:
    n.bear(n.signs(" - fade", "steps to 98% of the best static peak")[0] == 0)
    return f"Not in time to its peak. {_fade(n)}"


_QUESTIONS = (  # question, answer, the claims it takes
    ("Does delta collapse entropy?", _delta_entropy, ("entropy", "rank")),
    ("Does delta collapse the rank of the update?", _delta_rank, ("rank",)),
    ("When does it?", _delta_when, ("rank",)),
    ("How do I know in a run of mine?", _in_my_run, ("rank",)),
    ("Does FADE beat static rules?", _fade_static, ("fade",)),
)
