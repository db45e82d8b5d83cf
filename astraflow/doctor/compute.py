"""torch, executed: driver against build, products, attention, collectives; in a child process."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

from astraflow.doctor.attention import examine_attention
from astraflow.doctor.collectives import examine_collectives
from astraflow.doctor.finding import Finding, Subject, fail, ok, skipped
from astraflow.doctor.gated_delta import examine_gated_delta
from astraflow.doctor.isolation import ask_child
from astraflow.doctor.numbers import compare
from astraflow.recipe.models import find_facts
from astraflow.supervisor.plan import kernel_environment
from astraflow.supervisor.preflight import visible_gpus

__all__ = ["COMPUTE_S", "examine_compute", "probe"]

COMPUTE_S = 150.0
"""Time for all of it (s). Two cores take ten seconds; kernels for GPUs are compiled first."""

_SIDE = 384
# Largest |difference| over largest |value|. float32 sums of 384 terms err by 1e-6; TF32, which
# nobody asked for here, by 1e-3. bfloat16 keeps 8 bits.
_TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}
_DRIVER_CURE = (
    "install a driver for CUDA {wanted} or newer, or a torch for this driver: see "
    "https://pytorch.org/get-started/locally"
)


def examine_compute(subject: Subject) -> Iterator[Finding]:
    """Run :func:`probe` in a process of its own."""
    if importlib.util.find_spec("torch") is None:
        yield skipped("torch", "torch is not installed", "`pip install 'astraflow-rl[train]'`")
        return
    recipe = subject.recipe.recipe if subject.recipe else None
    facts = find_facts(recipe.model.path) if recipe else None
    settings = getattr(recipe.trainer, recipe.trainer.backend, None) if recipe else None
    argument = {
        "gpus": len(visible_gpus()),
        "attention": getattr(settings, "attention", "auto"),
        "head_dim": facts.head_dim if facts else 64,
        "groups": facts.num_heads // facts.num_kv_heads if facts else 2,
        "gated_delta": bool(facts and facts.linear_attention_layers),
    }
    yield from ask_child(
        "astraflow.doctor.compute:probe",
        argument,
        within_s=COMPUTE_S,
        environment=kernel_environment(),
    )


def probe(argument: Mapping[str, Any]) -> Iterator[Finding | str]:
    """Examine torch itself, then what it computes on the CPU and on each GPU."""
    yield "torch"
    import torch

    abi = "new" if torch.compiled_with_cxx11_abi() else "old"
    yield ok("torch", f"{torch.__version__}, {abi} C++ ABI")
    devices = ["cpu"]
    if argument["gpus"]:
        yield "driver"
        driver = _driver()
        yield driver
        if driver.verdict == "ok":
            devices += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    for device in devices:
        yield f"matmul {device}"
        yield _multiply(device)
    yield from examine_attention(
        devices[-1],
        wanted=argument["attention"],
        head_dim=argument["head_dim"],
        groups=argument["groups"],
    )
    yield from examine_gated_delta(devices[-1], wanted=argument["gated_delta"])
    yield from examine_collectives(num_gpus=len(devices) - 1)


def _driver() -> Finding:
    """Hold the driver and the GPUs against what this torch was built for."""
    import torch

    built = torch.version.cuda
    if built is None:
        cure = "`pip install --force-reinstall torch`, from an index with CUDA builds"
        return fail("driver", f"torch {torch.__version__} was built without CUDA", cure)
    cure = _DRIVER_CURE.format(wanted=built)
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return fail("driver", f"CUDA {built} of torch does not start: {error}", cure)
    number = torch._C._cuda_getDriverVersion()  # type: ignore[attr-defined]
    driver = (number // 1000, number % 1000 // 10)
    if driver[0] < int(built.split(".")[0]):
        found = f"the driver knows CUDA {driver[0]}.{driver[1]}, and torch was built for {built}"
        return fail("driver", found, cure)
    known = torch.cuda.get_arch_list()
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        if not any(int(arch.rstrip("af").split("_")[1]) // 10 == major for arch in known):
            name = torch.cuda.get_device_name(index)
            found = f"torch has no code for {name} (sm_{major}{minor}), only {' '.join(known)}"
            return fail("driver", found, cure)
    found = f"CUDA {driver[0]}.{driver[1]} of the driver, {built} of torch"
    return ok("driver", f"{found}, {torch.cuda.get_device_name(0)}")


def _multiply(device: str) -> Finding:
    """Multiply two matrices in float32 and bfloat16 and compare with float64 on the CPU."""
    import torch

    generator = torch.Generator().manual_seed(0)
    shown, right = [], True
    for name, tolerance in _TOLERANCES.items():
        dtype = getattr(torch, name)
        left, other = (torch.randn(_SIDE, _SIDE, generator=generator).to(dtype) for _ in range(2))
        product = left.to(device) @ other.to(device)
        pairs = {"product": (product, left.double() @ other.double())}
        text, fits = compare(pairs, tolerance=tolerance, dtype=name)
        shown.append(text)
        right = right and fits
    label, found = f"matmul {device}", "; ".join(shown)
    if right:
        return ok(label, found)
    cure = "unset TORCH_ALLOW_TF32_CUBLAS_OVERRIDE; else the device or its library is at fault"
    return fail(label, found, cure)
