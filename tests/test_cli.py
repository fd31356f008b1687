"""The command line: one-line errors with exit code 2, light start, complete and reproducible output."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fade_sim.cli import main

TINY = ["--seeds", "2", "--train.steps", "40", "--train.record", "20",
        "--world.train_prompts", "16", "--world.test_prompts", "8"]


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def bad(capsys, *argv):
    """The one line that a refused command prints."""
    code = main(list(argv))
    out = capsys.readouterr()
    assert code == 2 and out.out == ""
    assert out.err.startswith("fade-sim: error: ") and out.err.count("\n") == 1
    return out.err


@pytest.mark.parametrize("argv, expected", [
    ("rnu", "unknown command 'rnu'; did you mean 'run'?"),
    ("run nosuch.toml", "nosuch.toml: no such config file"),
    ("run fad", "did you mean 'fade'?"),
    ("run --sed 3", "run: unknown option '--sed'; did you mean '--seeds'?"),
    ("run --seeds 0", "'0' is not an integer of at least 1"),
    ("run --seeds two", "'two' is not an integer of at least 1"),
    ("run a b", "run: unknown argument 'b'"),
    ("run --train.lr", "--train.lr needs a value"),
    ("run --train.lr 1 --train.lr 2", "--train.lr is given twice"),
    ("run --seeds 3 --train.seeds 4", "both given"),
    ("run --seeds 3 --seeds 4", "run: --seeds is given twice"),
    ("run --train.lr fast", "train.lr is 'fast', expected float"),
    ("run --train.group_size 1", "needs at least 2 rollouts"),
    ("run --solve-rates nosuch.jsonl", "nosuch.jsonl"),
    ("run --out /proc/x", "/proc/x: cannot be written"),
    ("run --out /dev/null", "/dev/null: already exists"),
    ("methods grop", "unknown method 'grop'; did you mean 'grpo'?"),
    ("weights powr", "unknown method 'powr'; did you mean 'power'?"),
    ("weights power --alpah 2", "unknown parameter 'alpah'; did you mean 'alpha'?"),
    ("weights power --alpha 0", "alpha is 0, expected a number at least 1"),
    ("weights power --group-size 0", "'0' is not an integer of at least 1"),
    ("weights power_unbiased --alpha 8", "expected at most group_size - 1 = 7"),
    ("weights table --weights nosuch.csv", "nosuch.csv: no such file"),
    ("weights scale_ema", "has no weights of its own"),
    ("weights power --figure /proc/x.png", "/proc/x.png: cannot be written"),
    ("weights power --figure x.foo", "x.foo: cannot draw a .foo, expected one of .png, .pdf, .svg"),
    ("weights grpo --group-size 1", "--group-size is 1, but grpo needs at least 2 rollouts"),
    ("replay smollm2_135m_arithmetic --method power(0)", "alpha is 0.0, expected a number at least 1"),
    ("replay smollm2_135m_arithmetic --method power(", "expected name(value) or name(key=value, ...)"),
    ("weights", "weights: name a method (see fade-sim methods), or --all"),
    ("replay nosuch", "nosuch"),
    ("replay smollm2_135m_arithmetic --method grop", "did you mean 'grpo'?"),
    ("replay smollm2_135m_arithmetic --h-star -1", "h_star"),
])
def test_bad_input_is_one_line_and_writes_nothing(argv, expected, capsys, tmp_path):
    assert expected in bad(capsys, *argv.split())
    assert os.listdir(tmp_path) == []


def run_python(*argv):
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=120)


def test_help_starts_light():
    """No NumPy, Numba, SciPy, Matplotlib, rich or torch before a command is known."""
    code = ("import sys\nfrom fade_sim.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit: pass\n"
            "heavy = {'numpy', 'numba', 'scipy', 'matplotlib', 'torch', 'rich', 'msgspec'} & set(sys.modules)\n"
            "sys.exit(f'loaded {heavy}' if heavy else 0)")
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "replay" in done.stdout


def test_errors_reach_a_person_as_text(tmp_path):
    done = run_python("-m", "fade_sim.cli", "run", "--train.lr", "nan")
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.count("\n") == 1
    assert "train.lr is nan, expected a finite number" in done.stderr


def test_dry_run_prints_a_config_that_runs_the_same(capsys, tmp_path):
    assert main(["run", "fade", *TINY, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert os.listdir(tmp_path) == []
    (tmp_path / "copy.toml").write_text(text)
    assert main(["run", "fade", *TINY, "--out", "a"]) == 0
    assert main(["run", "copy.toml", "--out", "b"]) == 0
    for name in ("config.toml", "metrics.jsonl", "arrays.npz", "summary.json", "figure.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_run_folder_is_complete_and_the_same_for_any_thread_count(capsys, tmp_path):
    """The default comparison, small; --quick keeps the seeds and steps that were given."""
    for threads in ("1", "2"):
        assert main(["run", *TINY, "--quick", "--threads", threads, "--out", f"t{threads}"]) == 0
    names = sorted(os.listdir(tmp_path / "t1"))
    assert names == ["arrays.npz", "config.toml", "figure.png", "meta.json", "metrics.jsonl", "summary.json"]
    for name in set(names) - {"meta.json"}:
        assert (tmp_path / "t1" / name).read_bytes() == (tmp_path / "t2" / name).read_bytes(), name
    shown = capsys.readouterr().out
    summary = json.loads((tmp_path / "t1" / "summary.json").read_text())
    with np.load(tmp_path / "t1" / "arrays.npz") as arrays:
        labels = arrays["on-policy/labels"].tolist()
        rank1 = arrays["stale by 30 updates/rank1"]
        assert arrays["on-policy/steps"].tolist() == [0, 20, 40]
    assert rank1.shape == (7, 2, 3) and labels[0] == "dr_grpo"
    entry = summary["stale by 30 updates"]["rules"]["asym_delta(0.3)"]["rank1"]
    assert entry["mean"] == pytest.approx(rank1[1, :, -1].mean(), rel=1e-12)
    # paired difference of two seeds: half-width = t(1 df, .975) * |d1 - d2| / 2, t = 12.7062
    d = rank1[1, :, -1] - rank1[0, :, -1]
    assert entry["minus_first_half_width"] == pytest.approx(12.7062047 * abs(d[0] - d[1]) / 2, rel=1e-6)
    assert f"{entry['mean']:.3f}" in shown
    rows = [json.loads(line) for line in (tmp_path / "t1" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 7 * 3 and rows[0]["delta"] is None  # dr_grpo has no controller: null, not NaN


def test_quick_is_a_fifth_of_the_steps_unless_given(capsys):
    def train(*argv):
        import tomllib

        assert main(["run", "fade", *argv, "--quick", "--dry-run"]) == 0
        return tomllib.loads(capsys.readouterr().out)["regime"][0]["train"]

    assert (train()["steps"], train()["seeds"]) == (300, 3)
    assert train("--train.steps", "700", "--train.seeds", "8")["steps"] == 700
    assert train("--train.seeds", "8")["seeds"] == train("--seeds", "8")["seeds"] == 8


def test_a_single_seed_has_no_interval_and_no_error(capsys, tmp_path):
    assert main(["run", *TINY[2:], "--seeds", "1", "--out", "one"]) == 0
    entry = json.loads((tmp_path / "one" / "summary.json").read_text())["on-policy"]["rules"]["fade"]["rank1"]
    assert entry["half_width"] is None and 0 < entry["mean"] <= 1
    assert "40 steps, 1 seed " in capsys.readouterr().out


def test_a_regime_that_an_override_changes_loses_its_name(capsys):
    """lr and staleness were what set the two regimes apart: overridden, one is left and named by its dynamics."""
    assert main(["run", "--train.lr", "20", "--train.staleness", "30", "--dry-run"]) == 0
    out = capsys.readouterr()
    assert out.out.count("[[regime]]") == 1 and 'name = "SGD lr 20, rollouts 30 updates old, no correction"' in out.out
    assert "two regimes are equal once overridden" in out.err
    assert main(["run", "--train.staleness", "30", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert 'name = "SGD lr 10, rollouts 30 updates old, no correction"' in out and '"stale by 30 updates"' in out


def test_brackets_in_labels_are_printed(capsys):
    assert main(["methods", "qae"]) == 0
    assert "(r - [rbar > 1-K])/sd" in capsys.readouterr().out
    assert main(["run", "fade_no_delta", *TINY, "--out", "x"]) == 0
    assert "fade[no_delta]" in capsys.readouterr().out


def test_a_users_function_trains_and_replays(capsys, tmp_path):
    (tmp_path / "mine2.py").write_text("def centred(rewards):\n    return rewards - rewards.mean()\n")
    (tmp_path / "c.toml").write_text(
        '[train]\ngroup_size = 4\n[[compare]]\nname = "dr_grpo"\n'
        '[[compare]]\nname = "table"\nweights = "mine2:centred"\n')
    assert main(["run", "c.toml", *TINY, "--out", "x"]) == 0
    with np.load(tmp_path / "x" / "arrays.npz") as arrays:
        entropy = arrays["run/train_entropy"]
        assert arrays["run/labels"].tolist() == ["dr_grpo", "mine2:centred"]
    np.testing.assert_allclose(entropy[0], entropy[1], rtol=1e-9)  # the user's rule is dr_grpo
    capsys.readouterr()
    assert main(["replay", "smollm2_135m_arithmetic", "--group-size", "4", "--method", "mine2:centred",
                 "--method", "power(3)"]) == 0
    out = capsys.readouterr().out
    assert "table(G=4)" in out and "power(3)" in out


def test_run_from_real_solve_rates(capsys, tmp_path):
    """180 prompts: 120 train, 60 held out; the start is (c + 1/2)/65 of the file's mean .385."""
    code = main(["run", "dr_grpo", "--solve-rates", "smollm2_135m_arithmetic", "--seeds", "2", "--train.steps", "4",
                 "--train.record", "2", "--out", "real"])
    assert code == 0
    with np.load(tmp_path / "real" / "arrays.npz") as arrays:
        start = (2 * arrays["run/train_pass@1"][0, :, 0] + arrays["run/test_pass@1"][0, :, 0]) / 3
    # mean of (64 p + .5)/65 over the file = (64 * .3850 + .5)/65
    np.testing.assert_allclose(start, (64 * 0.38497 + 0.5) / 65, atol=2e-4)


def test_weights_prints_the_numbers_and_draws_them(capsys, tmp_path):
    assert main(["weights", "power", "--group-size", "4", "--alpha", "2"]) == 0
    out = capsys.readouterr().out
    # c = 1 of 4: (3/4)(3/4) = .5625 and (3/4)(-1/4) = -.1875
    assert "+0.5625" in out and "-0.1875" in out
    # m_S(p = .5), G = 4, alpha 2: (1 - 1/4) p q [(1 - 2/4) q + 1/4] = .75 * .25 * .5 = .09375
    assert "0.0938" in out
    assert (tmp_path / "weights-power-2-G4.png").read_bytes().startswith(b"\x89PNG")


def test_weights_of_a_users_table(capsys, tmp_path):
    (tmp_path / "mine.csv").write_text("success,failure\n0,-1\n0.5,-0.5\n0.25,0\n")
    assert main(["weights", "table", "--weights", "mine.csv", "--group-size", "2"]) == 0
    # m_S(.5) = P(c=1) .5 .5 + P(c=2) .25 = .125 + .0625; m_F = P(0) 1 + P(1) .5 .5 = .375
    out = capsys.readouterr().out
    assert "0.1875" in out and "0.3750" in out


def test_weights_of_a_users_function(capsys, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def centred(rewards):\n    return rewards - rewards.mean()\n\n"
        "def ranked(rewards):\n    return rewards * range(len(rewards))\n\n"
        "def broken(rewards):\n    return rewards[:1]\n")
    assert main(["weights", "mine:centred", "--group-size", "4"]) == 0
    assert "+0.7500" in capsys.readouterr().out  # 1 - 1/4
    assert "depends on the order of the rollouts at c = 1" in bad(capsys, "weights", "mine:ranked")
    assert "expected as many finite numbers" in bad(capsys, "weights", "mine:broken")
    assert "mine:nope: cannot be loaded" in bad(capsys, "weights", "mine:nope")


def test_weights_of_all_rules(capsys, tmp_path):
    assert main(["weights", "--all", "--group-size", "4", "--figure", "all.png"]) == 0
    out = capsys.readouterr().out
    # k = 4 is one too many for the leave-one-out rule at G = 4
    assert "left out: pass_at_k_loo: k is 4, expected at most group_size - 1 = 3" in out
    assert (tmp_path / "all.png").stat().st_size > 10_000


def test_methods_answers_which_grpo_is_this(capsys):
    assert main(["methods"]) == 0
    assert "dr_grpo" in capsys.readouterr().out
    assert main(["methods", "grpo"]) == 0
    out = capsys.readouterr().out
    assert "2402.03300" in out and "ddof" in out and "1e-06" in out


def test_llm_side_reads_the_same_config(capsys):
    from llm.cli import main as llm_main

    assert llm_main(["check", "fade_no_delta"]) == 0
    assert "ablation = no_delta" in capsys.readouterr().out
    assert llm_main(["check", "nosuch"]) == 2
    assert capsys.readouterr().err.startswith("fade-llm: error: nosuch: no such config file")
