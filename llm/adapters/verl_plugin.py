"""What `import verl` loads. verl hides the failure of a plugin: here it is said."""

import warnings

try:
    import llm.adapters.verl  # noqa: F401
except Exception as error:
    warnings.warn(f"the rules of fade_sim are not registered with verl: {type(error).__name__}: {error}", stacklevel=2)
    raise
