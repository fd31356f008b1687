"""Problems of public data sets, from files on disk, as the trainer's own: {"prompt", "answer", "skill"}.

Nothing is downloaded. One module per source, named in SOURCES, each with `COLUMNS` (what it reads of
a row) and `convert(row, where, ask) -> Found`; a source whose rows have dates also has `date(row, where)`.
"""

SOURCES = {  # name on the command line -> module
    "codecontests": "code_contests",
    "taco": "taco",
    "livecodebench": "livecodebench",
    "aime": "aime",
    "human-eval": "human_eval",
    "reasoning-gym": "generated",
}
