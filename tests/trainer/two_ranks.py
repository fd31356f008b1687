"""Steps of a trainer in as many processes as torchrun starts; rank 0 writes what came out. Run by test_parallel."""

import json
import sys
from pathlib import Path

import torch
from tiny import train_steps

from llm import checkpoint, parallel


def main(folder: Path, jobs: dict) -> None:
    torch.set_num_threads(1)
    ranks = parallel.start()
    try:
        for name, overrides in jobs.items():
            trainer, rows = train_steps(overrides, ranks, folder / f"{name}.saved")
            whole = torch.cat([parallel.whole(p.detach()).flatten() for p in trainer.policy.parameters()])
            if ranks.rank == 0:
                torch.save(whole, folder / f"{name}.pt")
                (folder / f"{name}.json").write_text(json.dumps(rows))
            checkpoint.save(trainer, folder / f"{name}.saved", 0)
    finally:
        ranks.close(failed=sys.exc_info()[0] is not None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
