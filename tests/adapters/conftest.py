"""Files that import an engine are not read where it is not installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("trl") else ["tiny_trl.py"]
