"""report.html: one file that answers what was claimed, whether it holds here, when, and how one knows.

No network, no scripts: pictures are data URIs and the style is inline. It is drawn from scores.json and
the PNG files alone.
"""

import base64
import math
from html import escape

from fade_sim.experiments import answers
from fade_sim.experiments.claim import FAILS, HOLDS, UNDER

LONG = 600  # characters of a reason above which it is folded
MANY = 20  # numbers that one table may hold before it is folded
_BADGE = {HOLDS: "yes", UNDER: "partly", FAILS: "no"}
_LABEL = {UNDER: "holds under conditions"}

STYLE = """
:root { color-scheme: light dark; --page: #fbfbf9; --ink: #1c1d1f; --soft: #5a5d63; --line: #d9d9d4; --box: #f1f1ec;
  --yes: #11643a; --partly: #7a5200; --no: #9c2323; --link: #0b4f8a; }
@media (prefers-color-scheme: dark) { :root { --page: #16181b; --ink: #e6e6e3; --soft: #a6a9af; --line: #3a3d42;
  --box: #1f2226; --yes: #6fce99; --partly: #e6b450; --no: #f08c84; --link: #86bdf2; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body { margin: 0; background: var(--page); color: var(--ink); overflow-wrap: break-word;
  font: 1.0625rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1.125rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: .5rem 0 .75rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 0 0 .5rem; letter-spacing: -.005em; }
h3 { font-size: .95rem; margin: 1.5rem 0 .25rem; color: var(--soft); font-weight: 600; }
p, blockquote, ul, dl, .claims, details { max-width: 46rem; }
p { margin: .5rem 0; } a { color: var(--link); } .soft { color: var(--soft); font-size: .95rem; }
.badge { display: inline-block; border: 1.5px solid currentColor; border-radius: 1rem; padding: .05rem .6rem;
  font-size: .85rem; font-weight: 650; white-space: nowrap; }
.yes { color: var(--yes); } .partly { color: var(--partly); } .no { color: var(--no); }
.claims { list-style: none; margin: 1.25rem 0; padding: 0; border-top: 1px solid var(--line); }
.claims li { border-bottom: 1px solid var(--line); padding: .75rem 0; }
.claims a { font-weight: 600; margin-right: .5rem; }
.claims p { margin: .25rem 0 0; }
section { border-top: 2px solid var(--line); margin-top: 3rem; padding-top: 1.5rem; }
blockquote { margin: .75rem 0; padding: .1rem 0 .1rem 1rem; border-left: 3px solid var(--line); }
ul { margin: .4rem 0; padding-left: 1.25rem; }
figure { margin: 1.25rem 0 0; background: #fff; padding: .5rem; }
img { display: block; width: 100%; min-width: 40rem; height: auto; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; margin-top: .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; line-height: 1.4;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .4rem .7rem; vertical-align: top; border-bottom: 1px solid var(--line); }
tr:last-child > * { border-bottom: 0; } thead th { background: var(--box); white-space: nowrap; }
tbody th { font-weight: 500; min-width: 11rem; }
.n { text-align: right; white-space: nowrap; } .note { min-width: 14rem; }
details { background: var(--box); border-radius: .5rem; padding: .6rem 1rem; margin: 1rem 0; }
summary { cursor: pointer; font-weight: 600; }
summary span { font-weight: 400; }
section details { max-width: none; margin: .5rem 0; padding: .5rem .8rem; }
section details .scroll { background: var(--page); } dt { font-weight: 600; margin-top: .6rem; } dd { margin: 0; }
code { font-size: .92em; overflow-wrap: anywhere; background: var(--box); border-radius: .25rem;
  padding: .05rem .3rem; }
.top { font-size: .9rem; margin-top: 1.25rem; }
@media print { .top { display: none; } section { break-inside: avoid-page; } }
"""

WORDS = (
    ("weights of successes and failures, masses",
     "Every rule multiplies the score of a rollout, the gradient of its log-probability, by a weight: w_S for a "
     "success, -w_F for a failure. The masses m_S and m_F are the averages of both under the policy; m_S/m_F is "
     "the sign ratio: below 1 a rule is failure-biased."),
    ("dr_grpo",
     "The rule whose weight is reward minus the mean of the group of G rollouts: m_S = m_F."),
    ("delta",
     "asym_delta(delta) divides the weight of failures by delta. Below 1 it suppresses failures harder, above 1 it "
     "is success-biased, at 1 it is dr_grpo."),
    ("alpha",
     "power(alpha) multiplies the weights of dr_grpo by (1 - solve rate)^(alpha - 1): above 1 it favours hard "
     "prompts. power_asym has both, alpha and delta."),
    ("FADE, scale_ema",
     "FADE is power_asym whose alpha falls as the average solve rate rises, and whose delta falls from 1 as the "
     "average entropy falls below a target H*. scale_ema is dr_grpo times the factor by which FADE's weights are "
     "larger, averaged over steps: its scale without its schedule."),
    ("asym_pure_loo, baseline, reinforce, nsr",
     "Probes of the sign alone: asym_pure_loo(r) has the masses' ratio r at equal sum; baseline(b) is reward minus "
     "b, so that baseline(0) is reinforce (successes alone) and baseline(1) is nsr (failures alone)."),
    ("world, head, table, regime",
     "Prompts with K possible answers each, some of them right; the policy is one head that all prompts share, or "
     "a table with a row per prompt, or both. A regime is one setting of learning rate (lr), staleness, "
     "correction, optimiser, group size and world."),
    ("solve rate, pass@k",
     "Chance that one rollout succeeds, and that one of k does; here exact, not sampled."),
    ("entropy",
     "Of the policy, in nats, averaged over prompts; H_S and H_F are the entropies within successes and within "
     "failures. A slope of H is its change per unit of log(m_S/m_F) over rules, at equal solve rate."),
    ("rank-1 energy",
     "Share of the largest singular value in the energy of the head's whole update, from 0 to 1: 1 means that all "
     "learning went into one direction. Excess: above that of dr_grpo, seed by seed."),
    ("stale by L updates",
     "Rollouts are drawn from the head of L updates ago. The importance ratio corrects for that; the PPO clip "
     "bounds it."),
    ("Lambda",
     "Learning rate times staleness times the largest eigenvalue of E[(m_F - m_S) Fisher], where Fisher is the "
     "mean square of the score: above 1, stale updates grow by themselves."),
    ("95% interval",
     "Over seeds (each draws a world and its samples), Student t. Contenders share worlds and random numbers, so "
     "differences between them are paired."),
)


def report(scores: dict, figures: dict[str, bytes]) -> str:
    """The whole page. scores: the contents of scores.json; figures: a PNG per claim."""
    claims = scores["claims"]
    sections = "\n".join(_section(name, entry, figures[name], scores["mode"]) for name, entry in claims.items())
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Claims about policy-gradient weights, tested</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<main>
<h1 id="top">What the weights of successes and failures do to a policy: the claims, tested</h1>
<p>Each claim below is tested in a simulated world with verifiable rewards, where entropy, solve rates and masses are
computed exactly and every rule runs under the same dynamics: only the weights of successes and failures differ. What
would count as holding was written down before the run; what was changed after a look at one is said in the limits.</p>
{_first_answer(claims)}
<details><summary>Words used here: {escape("; ".join(word for word, _ in WORDS))}</summary>
<dl>{"".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in WORDS)}</dl></details>
{_questions(claims)}
<h2>The claims</h2>
<ol class="claims">
{"".join(_line(name, entry) for name, entry in claims.items())}</ol>
<p class="soft">Made by <code>fade-sim reproduce --{escape(scores["mode"])}</code>, version {escape(scores["version"])},
program {escape(scores["source"])}. {_size(scores["mode"])} The numbers are also in scores.json beside this file. A toy
world cannot settle what a language model does: see the limits of each claim.</p>
{sections}
</main>
</body>
</html>
"""


def _size(mode: str) -> str:
    return "A quick run: fewer regimes and seeds; --full decides." if mode == "quick" else "All seeds."


def _first_answer(claims: dict) -> str:
    """How many hold, in one line."""
    said = {HOLDS: ("holds", "hold"), UNDER: ("holds only under conditions", "hold only under conditions"),
            FAILS: ("does not hold here", "do not hold here")}
    count = {verdict: sum(entry["verdict"] == verdict for entry in claims.values()) for verdict in said}
    parts = ", ".join(f"{n} {said[verdict][n > 1]}" for verdict, n in count.items() if n)
    return f"<p><strong>Of {len(claims)} claim{'s' * (len(claims) != 1)}: {parts}.</strong></p>"


def _questions(claims: dict) -> str:
    """What people ask first, answered from the numbers below."""
    rows = answers.questions(claims)
    if not rows:
        return ""
    return "<h2 id=\"asked\">Asked first</h2>\n<dl>" + "".join(
        f"<dt>{escape(question)}</dt><dd>{_code(escape(answer))}</dd>" for question, answer in rows) + "</dl>"


def _code(text: str) -> str:
    """Text between backquotes as code."""
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(text.split("`")))


def _badge(entry: dict) -> str:
    verdict = entry["verdict"]
    return f'<span class="badge {_BADGE[verdict]}">{escape(_LABEL.get(verdict, verdict))}</span>'


def _line(name: str, entry: dict) -> str:
    """An entry of the list at the top: title, badge, short answer; its conditions stand with its numbers."""
    return (f'<li><a href="#{escape(name)}">{escape(entry["claim"]["title"])}</a>{_badge(entry)}'
            f'<p>{escape(answers.short(name, entry))}</p></li>\n')


def _section(name: str, entry: dict, png: bytes, mode: str) -> str:
    claim = entry["claim"]
    picture = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    width, height = png_size(png)
    alt = f"Figure of the claim: {claim['title']}. Verdict: {entry['verdict']}. {entry['because']}"
    under = _list("Holds under", entry["conditions"])
    return f"""<section id="{escape(name)}" aria-labelledby="{escape(name)}-title">
<h2 id="{escape(name)}-title">{escape(claim["title"])}</h2>
<p>{_badge(entry)}</p>
<h3>The claim</h3>
<blockquote><p>{escape(claim["text"])}</p></blockquote>
<p class="soft">Source: {escape(claim["source"])}</p>
<h3>What counts as holding, decided before the run</h3>
<p>{escape(claim["holds_if"])}</p>
<figure class="scroll" tabindex="0">
<img src="{picture}" width="{width}" height="{height}" alt="{escape(alt)}">
</figure>
<h3>Verdict and reason</h3>
{_reason(name, entry)}
{under}<h3>The numbers</h3>
{numbers_of(entry)}
{_list("Beside a prototype", entry["differs"])}{_list("What this cannot tell", entry["limits"])}<p class="soft">This
claim alone: <code>fade-sim reproduce {escape(name)} --{escape(mode)}</code></p>
<p class="top"><a href="#top">Back to the list of claims</a></p>
</section>"""


def _reason(name: str, entry: dict) -> str:
    """The reason; a long one, regime by regime, is folded under the short answer."""
    because = escape(entry["because"])
    if len(because) <= LONG:
        return f"<p>{because}</p>"
    return (f"<p>{escape(answers.short(name, entry))}</p>\n<details><summary>Regime by regime</summary><p>{because}</p>"
            "</details>")


def _list(heading: str, items) -> str:
    if not items:
        return ""
    return f"<h3>{escape(heading)}</h3>\n<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>\n"


def png_size(png: bytes) -> tuple[int, int]:
    """(width, height) in pixels, from the header."""
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


def numbers_of(entry: dict) -> str:
    """One table, or where names have a common part before a colon (a regime) and are many, one per part: folded,
    with its first number in sight."""
    numbers, title = entry["numbers"], entry["claim"]["title"]
    groups: dict[str, list] = {}
    for n in numbers:
        head, colon, _ = n["name"].partition(": ")
        groups.setdefault(head if colon else "", []).append(n)
    if len(numbers) <= MANY or len(groups) < 2:
        return numbers_table(numbers, title)
    parts = []
    for head, rows in groups.items():
        rows = [{**n, "name": n["name"].removeprefix(f"{head}: ") if head else n["name"]} for n in rows]
        first = rows[0]
        between = f" ({_interval(first)})" if _interval(first) else ""
        parts.append(f"<details><summary>{escape(head or 'Others')}: <span>{escape(first['name'])} "
                     f"{_value(first)}{between}</span></summary>\n{numbers_table(rows, head or title)}</details>")
    return "\n".join(parts)


def numbers_table(numbers, caption: str) -> str:
    """A row per number; columns that no row fills are left out."""
    filled = [column for column in _COLUMNS if any(column[2](n) for n in numbers)] or _COLUMNS[:2]
    head = "".join(f'<th scope="col" class="{css}">{escape(heading)}</th>' for heading, css, _ in filled)
    body = "".join("<tr>" + "".join(_table_cell(k, css, cell(n)) for k, (_, css, cell) in enumerate(filled)) + "</tr>\n"
                   for n in numbers)
    return (f'<div class="scroll" tabindex="0" role="region" aria-label="Numbers: {escape(caption)}">'
            f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>")


def _table_cell(k: int, css: str, text: str) -> str:
    return f'<th scope="row">{escape(text)}</th>' if k == 0 else f'<td class="{css}">{escape(text)}</td>'


def _value(n: dict) -> str:
    return _number(n["value"], _digits(n)) or "-"


def _interval(n: dict) -> str:
    if n["low"] is None or n["high"] is None:
        return ""
    return f"{_number(n['low'], _digits(n))} to {_number(n['high'], _digits(n))}"


def _digits(n: dict) -> int | None:
    """Decimals that show two digits of the interval's half-width; None where there is no interval."""
    ends = n["low"], n["high"]
    if not all(isinstance(end, (int, float)) for end in ends) or ends[1] <= ends[0]:
        return None
    return min(max(1 - math.floor(math.log10((ends[1] - ends[0]) / 2)), 0), 9)


def _number(value, digits: int | None) -> str:
    """A number of scores.json: null is nothing, "inf" stays text."""
    if value is None or isinstance(value, str):
        return (value or "").replace("-", "\u2212")
    if digits is None or abs(value) >= 10**6:
        return f"{value:.4g}".replace("-", "\u2212")
    return f"{value:z.{digits}f}".replace("-", "\u2212")  # z: no minus before a rounded zero


_COLUMNS = (  # heading, class, text of a cell
    ("quantity", "", lambda n: n["name"]), ("value", "n", _value), ("95% interval", "n", _interval),
    ("seeds", "n", lambda n: str(n["seeds"]) if n["seeds"] else "exact"),
    ("predicted", "n", lambda n: _number(n["predicted"], _digits(n))),
    ("a prototype had", "n", lambda n: n["prototype"].replace("+-", "±")), ("note", "note", lambda n: n["note"]),
)
