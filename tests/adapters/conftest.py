"""Files that import an engine are not read where it is not installed."""

from importlib.util import find_spec

collect_ignore = [f"tiny_{engine}.py" for engine in ("trl", "verl") if not find_spec(engine)]
