"""The instruction in front of every converted problem, in this one place, and what each reward reads of an answer.

    program, function   reward.name = "code": the last closed ``` block of the answer (code_reward.py)
    number              reward.name = "math": the content of the last \\boxed{} (math_answer.py)
    tagged              reward.name = "gym": the text of the last <answer> </answer> (gym_reward.py)

No chat template is applied: for a model that was tuned on one, put it around the prompts.
"""

_PROGRAM = ("Write a Python 3 program that solves this problem. It reads standard input and writes standard output. "
            "End your answer with the whole program in one ```python block.")
_FUNCTION = ("Write Python 3 code that solves this problem. It is called as the starter code says, and reads and "
             "prints nothing. End your answer with the whole code in one ```python block.")
_NUMBER = r"Solve this problem. The answer is a whole number: end your answer with it in \boxed{}."
_TAGGED = "Solve this problem. End your answer with the final answer alone between <answer> and </answer>."
_ALL = (_PROGRAM, _FUNCTION, _NUMBER, _TAGGED)


def program(statement: str) -> str:
    """A problem that a program solves on standard input and output."""
    return f"{_PROGRAM}\n\n{statement.strip()}\n"


def function(statement: str, starter: str) -> str:
    """A problem that a function solves; `starter`: its first lines, or all there is to say about its name."""
    before = f"{statement.strip()}\n\n" if statement.strip() else ""
    return f"{_FUNCTION}\n\n{before}Starter code:\n```python\n{starter.rstrip()}\n```\n"


def number(statement: str) -> str:
    """A problem whose answer is a whole number."""
    return f"{_NUMBER}\n\n{statement.strip()}\n"


def tagged(statement: str) -> str:
    """A problem whose answer is any text."""
    return f"{_TAGGED}\n\n{statement.strip()}\n"


def statement_of(prompt: str) -> str:
    """A prompt without the instruction, which all problems share and which would look like overlap."""
    for instruction in _ALL:
        if prompt.startswith(instruction):
            return prompt[len(instruction) :].lstrip("\n")
    return prompt
