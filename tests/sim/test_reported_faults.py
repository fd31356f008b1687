"""Faults that simulators are known for, each with its right value (numba, Gymnasium, NumPy trackers)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import njit

import fade_sim
from fade_sim.sim import primitives

PACKAGE = Path(fade_sim.__file__).parent


def run_python(code, **kwargs):
    env = {**os.environ, **kwargs.pop("env", {})}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=env, **kwargs)


@njit
def policy(own, x, head, use_head, bilinear, token_t, hidden_t, prob, b):
    return primitives.policy(own, x, head, use_head, bilinear, token_t, hidden_t, prob, b, x)


def test_softmax_of_huge_logits():
    """SIM-07: [1000, 1001] -> [.268941, .731059] = 1/(1+e), e/(1+e)."""
    for bias, right in (([1000.0, 1001.0], [0.2689414213699951, 0.7310585786300049]), ([-1e308, 1e308], [0.0, 1.0])):
        feature = np.zeros((1, 1, 2))
        prob = np.empty((1, 2))
        entropy = policy(np.array([bias]), 0, np.zeros((1, 1)), True, True, feature, feature, prob, 0)
        np.testing.assert_allclose(prob[0], right, rtol=1e-14, atol=1e-307)
        assert 0 <= entropy < np.log(2)


SMALL_RUN = """
import sys, os, threading
from fade_sim import config
from fade_sim.sim import simulate
cfg = config.resolve({"train": {"steps": 20, "seeds": 1, "record": 20},
                      "world": {"train_prompts": 8, "test_prompts": 4}}, {}, "x")
def go():
    return simulate(cfg.regimes[0], cfg.contenders, threads=2).last("train_entropy")[0, 0]
first = go()
"""


def test_threads_and_forks_do_not_abort():
    """SIM-06: two Python threads run at the same time, then a forked child runs: same value everywhere."""
    done = run_python(SMALL_RUN + """
values = []
threads = [threading.Thread(target=lambda: values.append(go())) for _ in range(2)]
[t.start() for t in threads]; [t.join() for t in threads]
child = os.fork()
if child == 0:
    os._exit(0 if go() == first else 3)
assert os.waitpid(child, 0)[1] == 0, "child"
assert values == [first, first], values
""")
    assert done.returncode == 0, done.stderr


def test_an_edit_in_another_file_is_not_served_from_a_stale_cache(tmp_path):
    """SIM-05: the kernels call rules.power_asym; changing it must change what a second process computes."""
    copy = tmp_path / "fade_sim"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "data"))
    code = """
import math, numpy as np
from fade_sim.sim import kernels as k, layout
running = np.array([.5, 1., 1., 0., math.nan, 2., .5, 0., 0., .5])
w = layout.Weights(layout.FULL, np.zeros((5, 2)), 1., .02, .05, 3., .3, math.nan, False, 0, 1., 0)
table = np.empty((5, 2))
k.fill_table(w, running, table)
print(table[1, 0])
"""
    env = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    values = []
    for _ in range(2):
        done = run_python(code, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        values.append(float(done.stdout))
    assert values == [0.5625, 0.5625]  # (3/4)^(2-1) * 3/4, cold and from the cache
    rules = copy / "advantage" / "rules.py"
    text = rules.read_text()
    assert text.count("hard_focus = (1 - g.mean) ** (alpha - 1)") == 1
    rules.write_text(text.replace("hard_focus = (1 - g.mean) ** (alpha - 1)", "hard_focus = (1 - g.mean) ** alpha"))
    done = run_python(code, env=env, cwd=tmp_path)
    assert float(done.stdout) == pytest.approx(0.75**3)


def test_cold_and_cached_kernels_give_the_same_bits(tmp_path):
    """A process that compiles and one that loads from the cache: the same run to the last bit."""
    env = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    code = SMALL_RUN + "t = simulate(cfg.regimes[0], cfg.contenders)\n" \
        "print(' '.join(v.tobytes().hex() for v in t.values.values()))"
    cold, warm = (run_python(code, env=env) for _ in range(2))
    assert cold.returncode == warm.returncode == 0, cold.stderr + warm.stderr
    assert len(cold.stdout) > 500 and cold.stdout == warm.stdout


def test_an_unwritable_cache_folder_only_costs_the_cache(tmp_path):
    done = run_python("from fade_sim.sim import compile as c; print(c._CACHE_DIR)", env={"NUMBA_CACHE_DIR": "/proc/x"})
    assert done.returncode == 0 and done.stdout.strip() == "None", done.stderr


def test_figures_need_no_display(tmp_path):
    """SIM-09: a GUI back-end in the environment and no screen; the picture is written all the same."""
    code = """
import numpy as np
from pathlib import Path
from fade_sim.figures import weights_figure
p = np.linspace(.1, .9, 5)
weights_figure("x", np.array([[0, 0], [.5, -.5], [0, 0]]), p, (p, p), None, Path("x.png"))
"""
    env = {"MPLBACKEND": "TkAgg", "DISPLAY": ""}
    done = run_python(code, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
