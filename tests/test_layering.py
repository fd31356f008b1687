"""Who may import whom, read from the syntax of every file: imports inside functions count too."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fade_sim

ROOT = Path(fade_sim.__file__).parent.parent
FILES = sorted(path for package in ("fade_sim", "llm") for path in (ROOT / package).rglob("*.py"))
HEAVY = ("numpy", "scipy", "numba", "matplotlib", "torch", "transformers", "safetensors", "rich",
         "msgspec", "gymnasium", "tomli_w")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, module: str = "m", package: bool = False, top_only: bool = False) -> set[str]:
    """Full names of everything imported; `from a import b` counts as a and as a.b (b may be a module)."""
    found = set()
    tree = ast.parse(source)
    nodes = list(_top_level(tree)) if top_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: None if package and node.level == 1 else -(node.level - package)]
                base = ".".join([*parents, base] if base else parents)
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif (isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in
              ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant)):
            found.add(str(node.args[0].value))
    return found


def _top_level(node):
    """Statements that run on import: everything outside function bodies."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from _top_level(child)


def imported_by(path: Path, top_only: bool = False) -> set[str]:
    return imports(path.read_text(), module_name(path), path.name == "__init__.py", top_only)


def within(name: str, packages) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def offenders(paths, forbidden, top_only=False):
    """{file: forbidden names it imports}"""
    found = {}
    for path in paths:
        if names := sorted(name for name in imported_by(path, top_only) if within(name, forbidden)):
            found[str(path.relative_to(ROOT))] = names
    return found


def under(*parts) -> list[Path]:
    """Files of a package, or the one file of a module."""
    prefix = ROOT.joinpath(*parts)
    return [path for path in FILES if prefix in path.parents or path == prefix.with_suffix(".py")]


def test_the_reader_of_imports_sees_every_form():
    source = """
import torch.nn as nn
from fade_sim import sim
from ..advantage import rules
from . import masses
if True:
    import numba
def f():
    import matplotlib.pyplot
    importlib.import_module("llm.loss")
"""
    everything = imports(source, "fade_sim.theory.entropy")
    for name in ("torch.nn", "fade_sim.sim", "fade_sim.advantage", "fade_sim.advantage.rules", "fade_sim.theory",
                 "fade_sim.theory.masses", "numba", "matplotlib.pyplot", "llm.loss"):
        assert name in everything, name
    top = imports(source, "fade_sim.theory.entropy", top_only=True)
    assert "numba" in top and "matplotlib.pyplot" not in top and "llm.loss" not in top
    assert "fade_sim.theory.masses" in imports("from .masses import masses", "fade_sim.theory", package=True)
    assert "fade_sim.errors" in imports("from ..errors import x", "fade_sim.theory", package=True)
    assert within("torch.nn", ["torch"]) and not within("torchvision", ["torch"])


def test_every_file_is_read():
    names = {module_name(path) for path in FILES}
    assert {"fade_sim", "fade_sim.advantage.rules", "fade_sim.theory.masses", "fade_sim.sim.kernels"} <= names
    assert "llm.cli" in names
    assert under("fade_sim", "cli") and len(under("fade_sim", "sim")) >= 5


def test_fade_sim_needs_neither_torch_nor_the_trainer():
    assert offenders(under("fade_sim"), ["torch", "llm"]) == {}


def test_trainer_uses_the_shared_part_only():
    allowed = [f"fade_sim.{part}" for part in ("advantage", "theory", "diagnostics", "spectral", "config", "settings",
                                               "errors", "store", "overlap", "cli", "__version__")]
    allowed += ["fade_sim.feedback", "fade_sim.figures"]  # of compare alone, checked below
    foreign = {name for path in under("llm") for name in imported_by(path)
               if within(name, ["fade_sim"]) and not within(name, allowed)}
    assert foreign <= {"fade_sim"}  # `from fade_sim import config`: its parts are checked above
    assert set(offenders(under("llm"), ["fade_sim.cli"])) == {"llm/cli.py"}
    assert set(offenders(under("llm"), ["fade_sim.feedback", "fade_sim.figures"])) == {
        "llm/compare.py", "llm/compare_figure.py"}


def test_trainer_names_no_rule():
    """What a rule is called decides nothing in the trainer: its files hold no name of one.

    But for hazards and TRL's settings: there such a name is that of an engine's loss.
    """
    from fade_sim.advantage import RULES

    names = {name for name in RULES if name not in ("table", "reinforce")}
    for path in [p for p in under("llm") if not p.name.startswith("hazards") and p.name != "trl_config.py"]:
        words = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not words & names, path


def test_an_engine_is_imported_by_its_adapter_alone():
    assert set(offenders(FILES, ["trl"])) == {"llm/adapters/trl.py"}


def test_theory_and_simulator_know_nothing_of_each_other():
    """If a prediction and the thing predicted shared code, their agreement would prove nothing."""
    assert offenders(under("fade_sim", "theory"), ["fade_sim.sim", "fade_sim.env"]) == {}
    assert offenders(under("fade_sim", "sim"), ["fade_sim.theory"]) == {}


@pytest.mark.parametrize("path", under("fade_sim", "advantage"), ids=module_name)
def test_core_needs_numpy_alone(path):
    allowed = [*sys.stdlib_module_names, "numpy", "fade_sim.errors", "fade_sim.advantage"]
    foreign = {name for name in imported_by(path) if not within(name, allowed)}
    assert foreign <= {"fade_sim"}  # `from fade_sim import advantage`: its parts are checked above


def test_rules_are_arithmetic_only():
    """The expressions run on NumPy and torch alike: nothing of either at the top of a rules file."""
    paths = [path for path in under("fade_sim", "advantage") if path.name.startswith("rules")]
    assert len(paths) >= 4 and offenders(paths, HEAVY, top_only=True) == {}


def test_theory_imports_scipy_inside_functions_only():
    assert offenders(under("fade_sim", "theory"), ["scipy", "numba", "matplotlib", "gymnasium"], top_only=True) == {}


def test_only_files_of_figures_import_matplotlib_at_their_top():
    found = list(offenders(FILES, ["matplotlib"], top_only=True))
    assert "fade_sim/figures.py" in found
    assert [name for name in found if name != "fade_sim/figures.py" and not name.endswith("_figure.py")] == []


@pytest.mark.parametrize("package", ["fade_sim", "llm"])
def test_cli_starts_light(package):
    allowed = [*sys.stdlib_module_names, "fade_sim", "llm"]
    (path,) = under(package, "cli")
    assert {name for name in imported_by(path, top_only=True) if not within(name, allowed)} == set()


def loaded_by(statement: str) -> set[str]:
    """Heavy packages in sys.modules of a fresh interpreter after a statement."""
    code = f"import sys\n{statement}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(("statement", "allowed"), [
    ("import fade_sim", set()),
    ("import fade_sim.cli", set()),
    ("import llm", set()),
    ("import fade_sim.advantage", {"numpy"}),
    ("import fade_sim.theory", {"numpy"}),
    ("import fade_sim.diagnostics", {"numpy"}),
    ("from fade_sim.advantage import *; advantages([1, 0], [0, 0], make('grpo'))", {"numpy"}),
    ("from fade_sim.theory import *; from fade_sim.advantage import make; masses(make('power'), 8, .5)", {"numpy"}),
    ("from fade_sim.theory import *; from fade_sim.advantage import make; peak(make('grpo'), 8)", {"numpy"}),
])
def test_import_loads_nothing_heavy(statement, allowed):
    assert loaded_by(statement) <= allowed
    if allowed:
        assert loaded_by(statement) == allowed  # the check sees what is loaded
