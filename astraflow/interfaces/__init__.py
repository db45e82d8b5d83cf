"""The three seams: where samples come from, who trains, how weights travel."""

from astraflow.interfaces.inference import EngineLoad, InferenceBackend, InferenceContext, Sampler
from astraflow.interfaces.trainer import (
    StepReport,
    TokenLoss,
    TrainerBackend,
    TrainerContext,
)
from astraflow.interfaces.weights import (
    Encoding,
    PublishReport,
    Shard,
    TensorPatch,
    TensorSpec,
    WeightPublisher,
    WeightReceiver,
    WeightUpdate,
)

__all__ = [
    "Encoding",
    "EngineLoad",
    "InferenceBackend",
    "InferenceContext",
    "PublishReport",
    "Sampler",
    "Shard",
    "StepReport",
    "TensorPatch",
    "TensorSpec",
    "TokenLoss",
    "TrainerBackend",
    "TrainerContext",
    "WeightPublisher",
    "WeightReceiver",
    "WeightUpdate",
]
