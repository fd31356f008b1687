"""reasoning-gym (Apache-2.0): problems made on the spot by its generators, scored by their own scorers.

A problem is written down whole, with all that its scorer reads: some generators make other problems in
another process, since they go through sets of texts in the order of their hashes.
"""

import contextlib
import dataclasses
import io
import json
from collections.abc import Iterator

from fade_sim.errors import InputError, nearest
from llm.datasets import prompts
from llm.datasets.cases import Found
from llm.judge import values

UNUSABLE = {"composite": "it is made of other generators: name those",
            "game_of_life_halting": "its scorer accepts any text (reasoning-gym 0.1.25 takes the truth of a text)"}
_APART = 1_000_000  # problem i of a generator has the random numbers of seed + i: seeds 1 and 2 would share all but one
LARGEST_SEED = (1 << 32) // _APART - 1
_NONSENSE = "neither here nor there"


def package():
    """The module reasoning_gym.factory. Raises InputError where it is not installed."""
    try:
        from reasoning_gym import factory
    except ImportError:
        raise InputError("reasoning-gym needs the package reasoning-gym: pip install 'fade-rlvr[tasks]'") from None
    return factory


def names() -> list[str]:
    """Generators that can be used alone."""
    return sorted(name for name in package().DATASETS if name not in UNUSABLE)


def dataset(name: str, config: dict):
    """A generator, which is its scorer too. Raises InputError on an unknown name or setting."""
    if name in UNUSABLE:
        raise InputError(f"{name} cannot be used: {UNUSABLE[name]}")
    if name not in (known := names()):
        raise InputError(f"unknown generator {name!r}{nearest(name, known)}")
    factory = package()
    fields = [field.name for field in dataclasses.fields(factory.DATASETS[name][1])]
    for key in config:
        if key not in fields:
            raise InputError(f"{name}: unknown setting {key!r}{nearest(key, fields)}")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # some print as they look for a problem
            return factory.create_dataset(name, **config)
    except Exception as error:  # the generator's own, whatever it is
        says = str(error) or "these settings do not go together"
        raise InputError(f"{name}: {says}") from None


def problems(name: str, config: dict, size: int, seed: int) -> Iterator[Found]:
    """`size` problems of a generator, others for every seed. Raises InputError where one cannot be made or written."""
    if not 0 <= seed <= LARGEST_SEED or size > _APART or "seed" in config or "size" in config:
        raise InputError(f"reasoning-gym: expected --seed from 0 to {LARGEST_SEED} and --size to {_APART}, and neither "
                         "as a --set")
    made = dataset(name, {**config, "seed": seed * _APART, "size": size})
    for i in range(size):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                entry = plain(made[i])
            written = json.loads(values.dump(entry))
        except Exception as error:  # the generator's own, whatever it is
            raise InputError(f"{name}: problem {i} cannot be made ({type(error).__name__}: {error})") from None
        if _accepts(made, _NONSENSE, entry):
            raise InputError(f"{name}: its scorer accepts {_NONSENSE!r} as the answer of problem {i}")
        yield Found(prompts.tagged(entry["question"]), {"gym": name, "config": config, "entry": written}, name,
                    f"{name} {i}")


def _accepts(made, answer: str, entry: dict) -> bool:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return made.score_answer(answer, entry) >= 1
    except Exception:  # what a scorer does with such a text is counted in training
        return False


def plain(value):
    """The same value of Python's own types: NumPy's subclasses of them do not outlive a file."""
    for kind in (str, float, int):
        if isinstance(value, kind) and not isinstance(value, bool):
            return kind(value)
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(map(plain, value))
    return value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value
