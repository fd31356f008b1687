"""The torch trainer on the shared advantage core: any rule of `fade_sim`, on a real transformer.

The distribution is called fade-rlvr; another public package also installs a module named `llm`.
"""
