"""The torch trainer on the shared advantage core. Today: the config check; the trainer is not written yet.

The distribution is called fade-rlvr; another public package also installs a module named `llm`.
"""
