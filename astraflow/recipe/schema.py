"""Recipe and its sections: every field, unit, default and reason on one page."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astraflow.recipe.base import Count, RecipeModel, Seconds
from astraflow.recipe.supervision import CheckpointSection, LimitsSection, RecoverySection

__all__ = [
    "AlgorithmSection",
    "ColumnsSection",
    "DataSection",
    "DataflowSection",
    "EvaluationSection",
    "ModelSection",
    "NetworkSection",
    "OptimizerSection",
    "Recipe",
    "RolloutSection",
    "TrainerSection",
    "WeightsSection",
    "WorkflowSection",
]


class ModelSection(RecipeModel):
    """The policy that is trained."""

    path: str = Field(min_length=1)
    """Folder with a checkpoint in Hugging Face format, or a hub id such as `Qwen/Qwen3-1.7B`.
    `builtin:tiny` is the warm-started model that ships with the package."""

    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Type that computes and that serves. `bfloat16` halves memory and wire bytes; `float32`
    is for CPUs and for exact comparisons."""

    context_length: int = Field(ge=16, le=16_777_216)
    """Longest prompt plus answer that engine and trainer must hold (tokens)."""

    thinking: bool = False
    """Passed to the chat template as `enable_thinking`. Off by default: the published recipes
    train without a thinking block, and both sides must render the same prompt."""


class RolloutSection(RecipeModel):
    """Where answers are sampled."""

    backend: str = "sglang"
    """Name of an installed inference adapter: `sglang` on GPUs, `transformers` anywhere."""

    gpus: int = Field(default=1, ge=0, le=1024)
    """GPUs for all rollout instances together; 0 samples on the CPU (count)."""

    instances: int = Field(default=1, ge=1, le=64)
    """RaaS processes that serve the run; each takes `gpus / instances` GPUs (count)."""

    data_parallel: int = Field(default=1, ge=1, le=1024)
    """Copies of the model over all instances; more copies sample more tokens (count)."""

    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """GPUs that share one copy, for models too large for one (count)."""

    samples_per_prompt: int = Field(default=8, ge=2, le=1024)
    """Answers per prompt, which form the group that rewards are compared in; more answers
    make a better baseline and cost tokens (count)."""

    temperature: float = Field(default=1.0, gt=0, le=2.0)
    """Softmax temperature of training samples. 1.0 samples from the policy that the loss
    reweights; 0 would make all answers of a group alike, so it is refused."""

    max_new_tokens: Count
    """Longest answer (tokens)."""

    max_concurrent_samples: int | None = Field(default=None, ge=1)
    """Most samples in flight per instance; null lets the engine's load decide (count)."""

    request_timeout_s: Seconds = 600.0
    """Longest time one answer may take before it is retried (s)."""

    max_retries: int = Field(default=2, ge=0, le=10)
    """Times a failed answer is asked for again before its group is dropped and replaced."""


class WorkflowSection(RecipeModel):
    """How a prompt becomes a graded group."""

    name: str = "rlvr"
    """Name of an installed workflow: `rlvr` asks once and grades the answer."""

    reward: str = "math_verify"
    """Name of an installed reward."""

    answer: Literal["boxed", "any"] = "boxed"
    """`boxed` pays only an answer in `\\boxed{}`; `any` also takes `<answer>` tags, a `####`
    tail, "the answer is ..." and a bare number."""

    instruction: str = "Please reason step by step, and put your final answer within \\boxed{}."
    """Put after the problem, on a line of its own; empty adds nothing."""

    chat: bool = True
    """Ask through the tokenizer's chat template; false asks with plain text that the model goes
    on with, which is what a base model can do."""

    examples: str = ""
    """Put before the problem, such as solved problems of the same form; empty adds nothing."""

    stop: tuple[str, ...] = ()
    """Texts that end an answer besides the model's own end tokens, each a single token, such as
    a newline after plain-text prompts."""

    grading_timeout_s: float = Field(default=3.0, ge=0.1, le=60)
    """Hard limit for grading one answer; the worker that exceeds it is killed (s)."""

    grading_workers: int = Field(default=2, ge=1, le=256)
    """Processes that grade, per RaaS instance (count)."""


class ColumnsSection(RecipeModel):
    """Names of the columns of a dataset of your own."""

    problem: str = "problem"
    """Column with the question."""

    answer: str = "answer"
    """Column with the gold answer."""

    id: str | None = "id"
    """Column with the row's name; null numbers the rows."""


class DataSection(RecipeModel):
    """What is trained on."""

    train: str = Field(min_length=1)
    """Name of a known dataset (`astraflow data list`) or path of a .jsonl, .jsonl.gz or
    .parquet file."""

    root: str | None = None
    """Folder with local datasets, looked in before any hub; null uses ASTRAFLOW_DATA if set."""

    columns: ColumnsSection = ColumnsSection()
    """Column names of `train` when it is a file of your own."""

    max_prompt_tokens: Count = 2000
    """Longest rendered prompt, template included; longer ones are dropped and counted, never
    cut (tokens)."""

    max_rows: int | None = Field(default=None, ge=1)
    """Use only the first rows; null uses all (count)."""

    shuffle: bool = True
    """Shuffle the prompts anew in each epoch, from `seed`."""


class AlgorithmSection(RecipeModel):
    """The loss."""

    name: Literal["m2po", "grpo", "gspo", "dr_grpo"] = "m2po"
    """`m2po` bounds the second moment of the log-ratio (arXiv:2510.01161), `grpo` clips the
    ratio per token (arXiv:2402.03300), `gspo` per sequence (arXiv:2507.18071), `dr_grpo`
    drops the length and deviation terms (arXiv:2503.20783)."""

    m2_threshold: float | None = Field(default=0.01, gt=0)
    """M2PO: largest mean squared log-ratio over the tokens that clipping could act on (nats
    squared); 0.01 in the published recipes, 0.04 in the paper."""

    scope: Literal["minibatch", "microbatch"] = "minibatch"
    """M2PO: decide over the whole optimizer mini-batch, so that packing and ranks do not
    matter, or per micro-batch, as older code does (cheaper by one forward pass)."""

    clip_low: float | None = Field(default=None, gt=0, lt=1)
    """GRPO, GSPO, Dr. GRPO: the ratio may fall to `1 - clip_low`; null takes the algorithm's
    own default (0.2; GSPO 3e-4)."""

    clip_high: float | None = Field(default=None, gt=0)
    """GRPO, GSPO, Dr. GRPO: the ratio may rise to `1 + clip_high`; null takes the algorithm's
    own default (0.28; GSPO 4e-4; Dr. GRPO 0.2)."""

    updates_per_step: int = Field(default=4, ge=1, le=64)
    """Optimizer steps on one batch, hence per published version; each takes a disjoint
    mini-batch of `batch_size / updates_per_step` sequences (count)."""

    reward_norm: Literal["group", "mean_only", "none"] = "group"
    """`group` subtracts the group's mean and divides by its sample deviation, `mean_only`
    only subtracts, `none` keeps rewards as they are."""

    advantage_norm: Literal["batch", "none"] = "batch"
    """`batch` also normalizes advantages over all answer tokens of the batch."""

    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL term to the starting policy (k3 estimate); above 0 keeps a second copy
    of the model in the trainer."""


class OptimizerSection(RecipeModel):
    """The optimizer."""

    name: Literal["adamw"] = "adamw"
    """AdamW (arXiv:1711.05101)."""

    lr: float = Field(default=1e-6, gt=0, le=0.1)
    """Learning rate."""

    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up: flat, or down to 0 at the last step."""

    warmup_updates: int = Field(default=0, ge=0)
    """Optimizer steps over which the rate rises from 0 (count)."""

    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        0.9,
        0.999,
    )
    """Decay of the first and second moment."""

    eps: float = Field(default=1e-8, gt=0, le=0.1)
    """Added to the root of the second moment."""

    weight_decay: float = Field(default=0.01, ge=0, le=10)
    """Decoupled weight decay."""

    clip_norm: float | None = Field(default=1.0, gt=0)
    """Largest global gradient norm; null does not clip."""

    max_skips_in_a_row: Count = 5
    """Steps with a gradient that is not finite before the run ends; such a step changes
    nothing (count)."""


class TrainerSection(RecipeModel):
    """The trainer."""

    backend: str = "fsdp"
    """Name of an installed trainer adapter."""

    gpus: int = Field(default=1, ge=0, le=1024)
    """GPUs, one rank on each; 0 trains on the CPU (count)."""

    cpu_ranks: int = Field(default=1, ge=1, le=64)
    """Ranks when `gpus` is 0 (count)."""

    steps: int = Field(ge=1, le=10_000_000)
    """Batches to train on; one version is published after each (count)."""

    batch_size: int = Field(ge=2, le=1_048_576)
    """Sequences in one batch, whole groups only (sequences)."""

    tokens_per_microbatch: int = Field(default=16384, ge=16, le=16_777_216)
    """Tokens in one forward pass on one rank; bounds activation memory (tokens)."""

    master_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights that the optimizer moves. With `bfloat16` most small updates round
    to nothing at low learning rates; `float32` costs 2 bytes a weight more, and 4 for each
    moment."""

    optimizer: OptimizerSection = OptimizerSection()
    """The optimizer."""

    shares_gpus: bool = False
    """Train on the first GPUs of rollout instead of on others: both on one GPU, each with its
    share of the memory (lower the engine's, such as `rollout.sglang.mem_fraction_static`)."""


class WeightsSection(RecipeModel):
    """How a new version travels from the trainer to the rollout instances."""

    transport: Literal["tcp"] = "tcp"
    """Framed TCP, each rank serving its own shards."""

    mode: Literal["full", "delta"] = "full"
    """Send every tensor, or only the elements whose bits changed since the last version."""

    full_sync_interval: int | None = Field(default=None, ge=1)
    """Delta: versions from one full send to the next, so that no receiver depends on an
    unbroken chain for longer (count)."""

    keep_deltas: int = Field(default=8, ge=1, le=64)
    """Delta: encoded versions that a sender keeps for receivers that lag (count)."""

    snapshot: Literal["gpu", "host"] = "gpu"
    """Delta with a trainer on GPUs: where each rank keeps the version it published last, to
    compare with. `host` takes pinned memory instead of 2 bytes a weight of each GPU, and compares
    over its bus. On a CPU it changes nothing."""


class DataflowSection(RecipeModel):
    """The service between rollout and trainer."""

    max_staleness: int = Field(default=8, ge=0, le=1024)
    """Versions that a sample's oldest token may lie behind the trainer when it is handed out;
    0 trains on-policy and reproduces bit for bit (versions)."""

    order: Literal["earliest_deadline", "fifo"] = "earliest_deadline"
    """Which groups a batch takes first: those that expire soonest, or those that came first."""

    drop_equal_rewards: bool = True
    """Drop groups whose rewards are all equal: they carry no gradient. They are counted and
    replaced, so the batch stays whole."""

    lease_timeout_s: Seconds = 120.0
    """Time without a sign of life of an instance after which its prompts are handed out
    again (s)."""


class EvaluationSection(RecipeModel):
    """Evaluation inside the run."""

    every_steps: int | None = Field(default=25, ge=1)
    """Steps between evaluations; null evaluates only before and after training (count)."""

    datasets: tuple[str, ...] = ()
    """Names or paths, as for `data.train`; empty never evaluates."""

    samples: int = Field(default=1, ge=1, le=256)
    """Answers per problem, for avg@k and pass@k (count)."""

    temperature: float = Field(default=0.6, ge=0, le=2.0)
    """Softmax temperature; 0 is greedy."""

    max_new_tokens: int | None = Field(default=None, ge=1)
    """Longest answer; null takes `rollout.max_new_tokens` (tokens)."""

    max_rows: int | None = Field(default=None, ge=1)
    """Use only the first rows of each dataset; null uses all (count)."""

    before_training: bool = True
    """Also evaluate the starting checkpoint."""

    timeout_s: Seconds = 3600.0
    """Longest time for one evaluation; what is missing then counts as wrong (s)."""


class NetworkSection(RecipeModel):
    """Where the roles of a run can be reached."""

    host: str = "127.0.0.1"
    """Address of this host that every role listens on. Loopback keeps the run to this machine;
    another one lets instances of other hosts join. All of them show the run's token, and nothing
    is encrypted, so such a network must be your own."""


class Recipe(RecipeModel):
    """One run."""

    description: str = ""
    """One line for `astraflow recipes`."""

    seed: int = Field(default=1, ge=0, lt=2**31)
    """Seed of the prompt order, of each sample and of the trainer."""

    model: ModelSection
    """The policy."""

    rollout: RolloutSection
    """Where answers are sampled."""

    workflow: WorkflowSection = WorkflowSection()
    """How a prompt becomes a graded group."""

    data: DataSection
    """What is trained on."""

    algorithm: AlgorithmSection = AlgorithmSection()
    """The loss."""

    trainer: TrainerSection
    """The trainer."""

    weights: WeightsSection = WeightsSection()
    """Weight transfer."""

    dataflow: DataflowSection = DataflowSection()
    """The service in the middle."""

    evaluation: EvaluationSection = EvaluationSection()
    """Evaluation inside the run."""

    checkpoint: CheckpointSection = CheckpointSection()
    """Checkpoints."""

    limits: LimitsSection = LimitsSection()
    """Deadlines."""

    recovery: RecoverySection = RecoverySection()
    """Restarts."""

    network: NetworkSection = NetworkSection()
    """Addresses."""

    @property
    def num_gpus(self) -> int:
        """GPUs that the run takes on its host (count)."""
        if self.trainer.shares_gpus:
            return max(self.rollout.gpus, self.trainer.gpus)
        return self.rollout.gpus + self.trainer.gpus
