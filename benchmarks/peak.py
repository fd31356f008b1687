"""Peak memory of a process; the standard library alone, so that any environment can import it."""

import resource
import sys


def peak_bytes() -> int:
    """Largest resident size of this process so far. A child starts with its parent's: start it from a small one."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
