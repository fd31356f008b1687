"""verl's own training loop on one machine without a GPU: what samples and what learns is replaced, nothing else.

Real: Hydra config, dataset and data loader, replay buffer, TransferQueue (on Ray), the loop, advantages, metrics,
validation, checkpoints. Scripted: which answers are right, their lengths, the entropy of their tokens.
"""

import json
import os
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "CUDA_VISIBLE_DEVICES": ""}

import pandas
import ray
import torch
import transfer_queue as tq
from omegaconf import open_dict
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from llm.adapters.verl import composed

G = 4  # rollouts of a prompt
WORDS = ["<pad>", "<eos>", *"0123456789+="]
CLEAN = ["actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.actor.use_dynamic_bsz=True",
         "algorithm.norm_adv_by_std_in_grpo=False", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
         "data.train_batch_size=3", "actor_rollout_ref.actor.ppo_mini_batch_size=3",
         f"actor_rollout_ref.rollout.n={G}"]  # nothing refused, nothing said


def overrides(rule: str, mode: str = "sync", *more: str) -> list[str]:
    return [f"algorithm.adv_estimator=fade_sim/{rule}", f"trainer.v1.trainer_mode=fade_sim/{mode}", *CLEAN, *more]


def start() -> None:
    """Ray and TransferQueue, as verl's task runner starts them."""
    config, _, _ = composed(overrides("dr_grpo", "sync", "transfer_queue.enable=True",
                                      "transfer_queue.backend.SimpleStorage.num_data_storage_units=1"))
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)  # threads, not cores
    tq.init(config.transfer_queue)


def stop() -> None:
    tq.close()
    ray.shutdown()


def prepare(folder: Path) -> list[str]:
    """Overrides that name a model without weights and six prompts, written into a folder."""
    folder.mkdir(exist_ok=True)
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    Qwen2Config(vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_key_value_heads=2,
                num_attention_heads=2, architectures=["Qwen2ForCausalLM"]).save_pretrained(folder)
    rows = [{"prompt": [{"role": "user", "content": f"{i} + 1 ="}], "data_source": "sums",
             "reward_model": {"style": "rule", "ground_truth": str(i + 1)}, "extra_info": {"index": i}}
            for i in range(6)]
    pandas.DataFrame(rows).to_parquet(folder / "prompts.parquet")
    return [f"actor_rollout_ref.model.path={folder}", f"data.train_files={folder}/prompts.parquet",
            f"data.val_files={folder}/prompts.parquet", "data.dataloader_num_workers=0", "trainer.logger=[file]",
            f"trainer.default_local_dir={folder}/checkpoints", "trainer.project_name=p",
            "trainer.experiment_name=e", "trainer.val_before_train=False", "trainer.total_epochs=9"]


def nested(rows) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


class Sampler:
    """The agent loop: prompt j of step t has (j + 2t) mod (G+1) right answers; validation: j mod 3 of n.

    lost: (prompt, session) that fail. unjudged: (prompt, session) without a verdict. outputs: of each session.
    """

    def __init__(self, trainer, lost=(), unjudged=(), outputs: int = 1):
        self.trainer, self.lost, self.unjudged, self.outputs = trainer, lost, unjudged, outputs
        self.asked: list[list[int]] = []  # prompts of each batch of training

    def generate_sequences(self, batch) -> None:
        validate = "validate" in batch and bool(batch["validate"])
        partition, step = ("val", 0) if validate else ("train", self.trainer.global_steps)
        n = self.trainer.config.actor_rollout_ref.rollout.val_kwargs.n if validate else G
        if not validate:
            self.asked.append([int(index) for index in batch["index"]])
        for i in range(len(batch)):
            uid, prompt = batch["uid"][i], int(batch["index"][i])
            right = prompt % 3 if validate else (prompt + 2 * step) % (G + 1)
            keys, fields, tags = [], [], []
            for session in range(n):
                if not validate and (prompt, session) in self.lost:
                    continue
                verdict = float("nan") if (prompt, session) in self.unjudged else float(session < right)
                for output in range(self.outputs):
                    keys.append(f"{uid}_{session}_{output}")
                    reward = verdict if output == self.outputs - 1 else 0.0  # the last output is the answer
                    fields.append(self.answer(prompt, session, output, reward) | {
                        "uid": uid, "data_source": "sums", "reward_model": {"ground_truth": str(prompt + 1)}})
                    size = len(fields[-1]["input_ids"])
                    tags.append({"status": "success", "prompt_len": 3, "response_len": size - 3, "seq_len": size,
                                 "global_steps": step, "min_global_steps": step, "max_global_steps": step})
            tq.kv_batch_put(keys=keys, partition_id=partition, tags=tags, fields=list_of_dict_to_tensordict(fields))
            tq.kv_batch_put(keys=[uid], partition_id=partition, tags=[{
                "is_prompt": True, "status": "finished" if len(keys) == n * self.outputs else "failure",
                "global_steps": step}])

    @staticmethod
    def answer(prompt: int, session: int, output: int, reward: float) -> dict:
        """Failures are longer than successes, later outputs than earlier ones; the last token is a tool's."""
        length = 1 + session + output + (0 if reward == 1 else 2)
        prompts, responses = torch.tensor([2 + prompt, 12, 13]), torch.arange(2, 3 + length)
        ids, mask = torch.cat([prompts, responses]), torch.ones(length + 1, dtype=torch.int64)
        mask[-1], scores = 0, torch.zeros(length + 1)
        scores[-1] = reward
        return {"prompts": prompts, "responses": responses, "input_ids": ids, "response_mask": mask,
                "loss_mask": mask, "attention_mask": torch.ones_like(ids), "position_ids": torch.arange(len(ids)),
                "rollout_log_probs": -0.1 * responses.float() - 0.1, "rm_scores": scores, "num_turns": 2,
                "extra_fields": {"reward_extra_info": {}}}


class Model:
    """The worker group: log-probabilities and entropies by formula; keeps what it is given to learn from."""

    def __init__(self):
        self._dispatch_info = {"actor": [0]}
        self.learned: list[dict[str, list[float]]] = []  # of each update: advantages of the tokens of each row

    def compute_log_prob(self, batch):
        ids = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["input_ids"])
        rows = [row.float() for row in ids["input_ids"].unbind()]
        fields = {"log_probs": nested(-0.1 * row - 0.1 for row in rows), "entropy": nested(row / 8 for row in rows)}
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=list_of_dict_to_tensordict(
            [{name: value[i] for name, value in fields.items()} for i in range(len(rows))]))
        return batch

    def update_actor(self, batch):
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["advantages"])
        self.learned.append({key: row.tolist() for key, row in
                             zip(batch.keys, data["advantages"].unbind(), strict=True)})
        return {"metrics": {"mfu": 0.0, "grad_norm": 1.0}}

    def save_model_to_cpu(self, version): ...

    def restore_model_from_cpu(self, version): ...

    def clear_cpu_model(self, version): ...

    def save_checkpoint(self, local_path, *rest, **kwargs):
        Path(local_path).mkdir(parents=True)

    def load_checkpoint(self, local_path, **kwargs):
        assert Path(local_path).is_dir()


class Anything:
    """Servers of the sampler: woken, put to sleep, handed weights."""

    reward_loop_worker_handles = ()  # not None: rewards come with the rollouts

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def get_n_gpus(self) -> int:
        return 1


def train(folder: Path, rule: str, *more: str, mode: str = "sync", steps: int = 2, **script):
    """verl's fit with scripted answers; (trainer, rows of its log)."""
    base = get_trainer_cls(f"fade_sim/{mode}")

    class Driven(base):
        def _setup(self):
            self._init_tokenizer()
            self._init_dataloader()
            self._init_dump_executor()
            self.actor_rollout_wg = Model()
            self.checkpoint_manager = self.reward_loop_manager = self.resource_pool_manager = Anything()
            self.llm_server_manager = None
            self.standalone_checkpoint_manager = Anything()  # of separate_async, as is the next
            self.current_mode = None
            self._load_checkpoint()

    config, _, _ = composed(overrides(rule, mode, *prepare(folder), f"trainer.total_training_steps={steps}", *more))
    with open_dict(config):
        config.transfer_queue.enable = True
    log = folder / "log.jsonl"
    os.environ["VERL_FILE_LOGGER_PATH"] = str(log)
    trainer = Driven(config)
    trainer.replay_buffer.poll_interval = 0.05
    trainer.init()
    trainer.fit(Sampler(trainer, **script))
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return trainer, {row["step"]: row["data"] for row in rows}
