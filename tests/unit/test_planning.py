"""Plans of memory and speed, against what was measured and worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app, register
from astraflow.errors import HardwareError, RecipeError
from astraflow.planning import (
    Device,
    MemoryPlan,
    Plan,
    known_gpu,
    plan_recipe,
    read_devices,
    read_hardware,
)
from astraflow.plugins import recipe_type
from astraflow.recipe.files import load_recipe
from astraflow.recipe.models import find_facts
from astraflow.recipe.schema import Recipe
from astraflow.supervisor import preflight

_SMALL = "qwen3-1.7b-m2po-2gpus-full"
_WEIGHTS = 1_720_567_808  # of Qwen3-1.7B, as the facts count them
_MIB, _GIB = 2**20, 2**30


def _load(recipe: str, *overrides: str) -> Recipe:
    return load_recipe(recipe, overrides, recipe_type=recipe_type()).recipe


def _plan(recipe: str, *overrides: str, hardware: str = "8xH100-80GB") -> MemoryPlan:
    return _whole(recipe, *overrides, hardware=hardware).memory


def _whole(recipe: str, *overrides: str, hardware: str = "8xH100-80GB") -> Plan:
    loaded = _load(recipe, *overrides)
    facts = find_facts(loaded.model.path)
    assert facts is not None
    gpus, gpu = read_hardware(hardware)
    return plan_recipe(loaded, facts, gpu, gpus=gpus)


@pytest.mark.parametrize(
    ("checkpointing", "measured_gib"), [("true", 28.1), ("half", 39.6), ("false", 54.9)]
)
def test_a_trainers_peak_is_within_15_percent_of_what_an_h200_showed(
    checkpointing: str, measured_gib: float
) -> None:
    plan = _plan(
        "qwen3-1.7b-m2po-2gpus-full",
        "trainer.master_dtype=float32",
        "trainer.tokens_per_microbatch=16384",
        "algorithm.kl_coef=0.0",
        f"trainer.fsdp.gradient_checkpointing={checkpointing}",
    )
    assert plan.trainer_bytes / 2**30 == pytest.approx(measured_gib, rel=0.15)


def test_cache_is_counted_by_hand() -> None:
    plan = _plan("qwen3-1.7b-m2po-2gpus-full")
    # 0.8 of 85 GB, less 2 bytes for each of 1,720,574,976 weights;
    # keys and values of 28 layers of 8 heads of 128 in 2 bytes
    weights = 2 * 1_720_574_976
    assert plan.cache_tokens == (68_000_000_000 - weights) // (2 * 28 * 8 * 128 * 2)
    assert plan.full_requests == plan.cache_tokens // 7168


def test_what_does_not_fit_is_told_with_a_micro_batch_that_does() -> None:
    plan = _plan(
        "qwen3-1.7b-m2po-2gpus-full",
        "trainer.tokens_per_microbatch=65536",
        "trainer.fsdp.gradient_checkpointing=false",
    )
    (problem,) = plan.problems
    assert "`trainer.tokens_per_microbatch: " in problem
    tokens = int(problem.split("tokens_per_microbatch: ")[1].split("`")[0])
    again = _plan(
        "qwen3-1.7b-m2po-2gpus-full",
        f"trainer.tokens_per_microbatch={tokens}",
        "trainer.fsdp.gradient_checkpointing=false",
    )
    assert again.problems == ()


def test_too_few_gpus_and_a_model_too_large_for_one_are_told() -> None:
    (few,) = _plan("qwen3-1.7b-m2po-2gpus-full", hardware="1xH100-80GB").problems
    assert few == "the recipe takes 2 GPUs, and there are 1"
    problems = _plan(
        "qwen3-8b-m2po-full", "trainer.gpus=1", "trainer.master_dtype=float32"
    ).problems
    assert any("shard over at least 2 GPUs" in problem for problem in problems)


def test_unknown_hardware_lists_what_is_known() -> None:
    with pytest.raises(RecipeError, match="8xV100") as caught:
        read_hardware("8xV100")
    assert "H200-141GB" in caught.value.hint


def test_the_command_ends_with_4_when_it_does_not_fit() -> None:
    register()
    fits = ["validate", "qwen3-8b-m2po-full", "--hardware", "8xH100-80GB"]
    done = CliRunner().invoke(app, fits)
    assert done.exit_code == 0
    assert "yes" in done.output
    done = CliRunner().invoke(app, [*fits[:-1], "4xH100-80GB"])
    assert isinstance(done.exception, HardwareError)
    assert done.exception.exit_code == 4


# --- speed


@pytest.mark.parametrize(("compiled", "measured"), [("false", 20_186), ("true", 35_246)])
def test_trained_tokens_are_within_10_percent_of_what_an_h200_showed(
    compiled: str, measured: int
) -> None:
    # One pass forward and one back, as `astraflow bench trainer` times them.
    sets = ["algorithm.name=grpo", "algorithm.kl_coef=0.0", f"trainer.fsdp.compile={compiled}"]
    speed = _whole(_SMALL, *sets, hardware="2xH200-141GB").throughput
    assert speed is not None
    assert speed.trained_tokens_per_s == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("requests", "measured"), [(1, 456), (256, 25_800)])
def test_sampled_tokens_are_within_15_percent_of_what_an_h200_showed(
    requests: int, measured: int
) -> None:
    # Requests of 512 tokens: half of the longest answer is assumed.
    sets = [
        "rollout.max_new_tokens=1024",
        "data.max_prompt_tokens=10",
        f"rollout.sglang.max_running_requests={requests}",
    ]
    speed = _whole(_SMALL, *sets, hardware="2xH200-141GB").throughput
    assert speed is not None
    assert speed.answers_at_once == requests
    assert speed.sampled_tokens_per_s == pytest.approx(measured, rel=0.15)


def test_reference_and_mask_cost_a_forward_pass_each() -> None:
    def trained(*sets: str) -> float:
        speed = _whole(_SMALL, *sets).throughput
        assert speed is not None
        return speed.trained_per_s

    plain = trained("algorithm.name=grpo", "algorithm.kl_coef=0.0")
    # forward and backward count three forward passes; the M2PO mask and the KL term one each
    assert trained("algorithm.kl_coef=0.0") == pytest.approx(plain * 3 / 4)
    assert trained("algorithm.kl_coef=0.001") == pytest.approx(plain * 3 / 5)


def test_the_faster_side_waits_for_the_rest_of_the_slower_sides_time() -> None:
    speed = _whole(_SMALL).throughput
    assert speed is not None
    assert speed.sampled_per_s < speed.trained_per_s
    assert speed.waits == "trainer"
    assert speed.wait_frac == pytest.approx(1 - speed.sampled_per_s / speed.trained_per_s)
    on_policy = _whole(_SMALL, "dataflow.max_staleness=0").throughput
    assert on_policy is not None
    assert on_policy.waits == "both"
    assert on_policy.samples_per_s < min(on_policy.sampled_per_s, on_policy.trained_per_s)


def test_short_answers_are_bound_by_requests_and_not_by_the_gpu() -> None:
    # 500 answers a second for one instance, 4 tokens each
    speed = _whole("smollm2-sums").throughput
    assert speed is not None
    assert speed.sampled_tokens_per_s == pytest.approx(2000)


def test_no_other_split_of_the_gpus_does_more() -> None:
    name = "qwen3.5-4b-m2po-full"
    best = _whole(name).throughput
    assert best is not None
    assert best.best is not None
    rates = {}
    for copies in range(1, 8):
        sets = (
            f"rollout.gpus={copies}",
            f"rollout.data_parallel={copies}",
            f"trainer.gpus={8 - copies}",
        )
        speed = _whole(name, *sets).throughput
        assert speed is not None
        rates[copies] = speed.samples_per_s
    assert best.best.rollout_gpus == max(rates, key=lambda copies: rates[copies])
    assert best.best.samples_per_s == pytest.approx(max(rates.values()))
    assert best.best.rollout_gpus + best.best.trainer_gpus == 8
    (advice,) = _whole(name).advice()
    assert f"`rollout.gpus: {best.best.rollout_gpus}`" in advice


def test_split_keeps_copies_on_two_gpus_whole() -> None:
    sets = ("rollout.tensor_parallel=2", "rollout.data_parallel=2")
    speed = _whole("qwen3-8b-m2po-full", *sets).throughput
    assert speed is not None
    assert speed.best is not None
    assert speed.best.rollout_gpus % 2 == 0


def test_speed_is_not_guessed_where_nothing_is_known() -> None:
    recipe = _load(_SMALL)
    facts = find_facts(recipe.model.path)
    assert facts is not None
    unknown = known_gpu("NVIDIA Unheard Of", 80 * 10**9)
    assert plan_recipe(recipe, facts, unknown, gpus=2).throughput is None
    assert _whole("quickstart").throughput is None
    assert _whole(_SMALL, "model.dtype=float32").throughput is None


# --- the host


def test_host_memory_of_a_full_transfer_is_counted_by_hand() -> None:
    host = _whole(_SMALL).host
    # RaaS, three processes of one server, one rank; supervisor, dataflow and two graders
    processes = 5 * _GIB + 4 * 200 * _MIB
    published = 2 * 2 * _WEIGHTS  # two copies of 2 bytes take turns
    received = int(2 * _WEIGHTS * 2.25)  # a whole version, and what the server maps
    assert host.memory_bytes == processes + published + received
    assert host.shm_bytes == 0


def test_snapshot_in_host_memory_and_kept_deltas_are_counted() -> None:
    def parts(*sets: str) -> dict[str, int]:
        host = _whole("qwen3-1.7b-m2po-2gpus-delta", *sets).host
        return {part.name: part.size_bytes for part in host.parts}

    on_gpu, on_host = parts(), parts("weights.snapshot=host")
    assert on_host["published versions"] - on_gpu["published versions"] == 2 * _WEIGHTS
    # a twentieth of the weights changes, 3 bytes each, for eight versions
    assert on_gpu["kept deltas"] == pytest.approx(0.05 * _WEIGHTS * 3 * 8)
    twice = parts("weights.keep_deltas=16")["kept deltas"]
    assert twice == pytest.approx(2 * on_gpu["kept deltas"])


def test_offloaded_optimizer_moves_from_the_gpu_to_the_host() -> None:
    tight = ("trainer.master_dtype=float32", "trainer.gpus=1")
    kept = _whole("qwen3-8b-m2po-full", *tight)
    assert any("offload_optimizer" in problem for problem in kept.problems)
    moved = _whole("qwen3-8b-m2po-full", *tight, "trainer.fsdp.offload_optimizer=true")
    assert moved.problems == ()
    assert moved.host.memory_bytes - kept.host.memory_bytes == 16 * 8_190_726_144


def test_gpus_that_talk_take_shared_memory() -> None:
    # four ranks, 64 MiB each
    assert _whole("qwen3-8b-m2po-full").host.shm_bytes == 4 * 64 * _MIB


# --- the GPUs of this host

_DRIVER = """\
0, GPU-aaaa-1, 143771, NVIDIA H200
1, GPU-bbbb-2, 81559, NVIDIA H100 80GB HBM3
2, GPU-cccc-3, 95830, NVIDIA H100 NVL
3, GPU-dddd-4, [N/A], NVIDIA Thing
"""


def test_driver_names_are_known_and_their_own_memory_counts() -> None:
    h200, h100, nvl = (device.gpu for device in read_devices(_DRIVER, None))
    assert (h200.name, h200.flops, h200.memory_bytes) == ("H200-141GB", 989e12, 143771 * _MIB)
    assert h100.name == "H100-80GB"
    # another memory than the table's: only that is known
    assert (nvl.name, nvl.flops) == ("NVIDIA H100 NVL", 0.0)
    assert known_gpu("NVIDIA A100-SXM4-40GB", 40960 * _MIB).name == "A100-40GB"
    assert known_gpu("NVIDIA A100-SXM4-80GB", 81920 * _MIB).name == "A100-80GB"


@pytest.mark.parametrize(
    ("restricted", "indices"),
    [
        (None, ["0", "1", "2"]),
        ("1,0", ["1", "0"]),
        ("GPU-bbbb", ["1"]),
        ("", []),
        ("-1", []),
        ("0,7,1", ["0"]),
    ],
)
def test_restriction_is_read_as_cuda_reads_it(restricted: str | None, indices: list[str]) -> None:
    assert [device.index for device in read_devices(_DRIVER, restricted)] == indices


# --- refusing a run


def _show(monkeypatch: pytest.MonkeyPatch, count: int, name: str, memory_mib: int) -> None:
    """Let this host show GPUs of one kind, and as much memory as they need."""
    gpu = known_gpu(name, memory_mib * _MIB)
    devices = [Device(index=str(i), uuid=f"GPU-{i}", gpu=gpu) for i in range(count)]
    monkeypatch.setattr(preflight, "visible_devices", lambda: devices)
    monkeypatch.setattr(preflight, "_host_problems", lambda host: [])


def test_run_that_does_not_fit_the_gpus_is_refused_with_what_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _show(monkeypatch, 2, "NVIDIA GeForce RTX 4090", 24564)
    recipe = _load(_SMALL, "trainer.fsdp.gradient_checkpointing=false")
    with pytest.raises(HardwareError, match="a trainer's rank needs") as raised:
        preflight.require_fit(recipe)
    assert raised.value.exit_code == 4
    # on other GPUs it is planned to fit
    preflight.require_fit(recipe, "2xH200-141GB")


def test_run_that_fits_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _show(monkeypatch, 2, "NVIDIA H200", 143771)
    preflight.require_fit(_load(_SMALL))
    monkeypatch.setattr(preflight, "visible_devices", lambda: [])
    preflight.require_fit(_load("quickstart"))


def test_host_that_is_too_small_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small:
        total = 2 * 10**9

    monkeypatch.setattr(preflight.psutil, "virtual_memory", Small)
    with pytest.raises(HardwareError, match="the host needs 3.1 GB of memory and has 2.0 GB"):
        preflight.require_fit(_load("quickstart"))


def test_run_command_refuses_before_it_makes_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    register()
    monkeypatch.setattr(preflight, "require_plugins", lambda recipe: None)
    monkeypatch.setattr(preflight, "require_gpus", lambda recipe: None)
    small = ["--hardware", "8xRTX4090-24GB", "--runs", str(tmp_path)]
    done = CliRunner().invoke(app, ["run", "qwen3-8b-m2po-full", *small])
    assert isinstance(done.exception, HardwareError)
    assert list(tmp_path.iterdir()) == []


def test_dry_run_shows_the_plan_in_words_and_as_json() -> None:
    register()
    command = ["run", "qwen3-8b-m2po-full", "--dry-run", "--hardware", "8xH100-80GB"]
    said = CliRunner().invoke(app, command).stdout
    assert "host memory: " in said
    assert "tokens/s sampled" in said
    plan = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["plan"]
    assert plan["fits"] is True
    assert plan["throughput"]["waits"] in ("trainer", "rollout")


def test_validate_gives_the_plan_as_json() -> None:
    register()
    command = ["validate", "qwen3-8b-m2po-full", "--hardware", "8xL40S-48GB", "--json"]
    (row,) = json.loads(CliRunner().invoke(app, command).stdout)["recipes"]
    assert row["plan"]["gpu"] == "L40S-48GB"
    assert row["plan"]["fits"] is True


def test_cure_names_the_fewest_ranks_that_hold_the_model() -> None:
    small = "16xRTX4090-24GB"
    (problem,) = _plan("qwen3-8b-m2po-full", hardware=small).problems
    ranks = int(problem.split("shard over at least ")[1].split()[0])
    enough = _plan("qwen3-8b-m2po-full", f"trainer.gpus={ranks}", hardware=small)
    assert enough.problems == ()
    too_few = _plan("qwen3-8b-m2po-full", f"trainer.gpus={ranks - 1}", hardware=small)
    assert too_few.problems != ()
