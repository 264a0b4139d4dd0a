import time
from pathlib import Path

import pytest
import yaml

from codriver.cli import read_plan
from codriver.errors import InputError, RecipeError
from codriver.recipe.load import apply_overrides, load_plan

GOOD = {
    "name": "demo",
    "student": {"model": "tiny:llama-200k"},
    "tasks": [{"task": "arithmetic", "operands": 3}],
    "rollout": {"num_generations": 4},
}


def write(tmp_path, **changes):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(GOOD | changes))
    return str(path)


def problems(tmp_path, *overrides, **changes):
    with pytest.raises(RecipeError) as caught:
        read_plan(write(tmp_path, **changes), list(overrides))
    return caught.value.problems


def test_a_recipe_without_stages_is_a_plan_of_one_stage(tmp_path):
    plan = read_plan(write(tmp_path), [])
    assert [s.name for s in plan.stages] == ["demo"] and not plan.is_staged and plan.output_dir == "runs/demo"


def test_a_stage_is_the_base_with_its_own_keys_on_top(tmp_path):
    stages = [
        {"name": "a", "kind": "sft", "steps": 3},
        {"name": "b", "student": {"model": "stage:a"}, "rollout": {"num_generations": 2}},
    ]
    plan = read_plan(write(tmp_path, stages=stages, steps=9), [])
    a, b = plan.stages
    assert (a.kind, a.steps, b.kind, b.steps) == ("sft", 3, "train", 9)
    assert (b.student.model, b.rollout.num_generations, b.tasks[0].options) == ("stage:a", 2, {"operands": 3})


def test_overrides_reach_lists_stages_and_new_keys(tmp_path):
    stages = [{"name": "a", "kind": "sft"}]
    plan = read_plan(
        write(tmp_path, stages=stages),
        ["tasks.0.operands=5", "tasks.arithmetic.max_number=7", "stages.a.steps=2", "optimizer.learning_rate=1e-4"],
    )
    (a,) = plan.stages
    assert a.tasks[0].options == {"operands": 5, "max_number": 7}
    assert a.steps == 2 and a.optimizer.learning_rate == 1e-4


def test_null_in_a_stage_overrides_the_base(tmp_path):
    stages = [{"name": "a", "signals": {"outcome": {"coef": 1.0}}, "evaluate": {"final_prompts": None}}]
    (a,) = read_plan(write(tmp_path, stages=stages, evaluate={"final_prompts": 7}), []).stages
    assert a.evaluate.final_prompts is None


def test_all_problems_are_reported_at_once_in_under_two_seconds(tmp_path):
    start = time.perf_counter()
    found = problems(
        tmp_path,
        student={"model": "./nowhere", "dtyp": "float32"},
        tasks=[{"task": "arithmetic", "opperands": 3}],
        optimizer={"learning_rate": -1},
        evaluate={"sets": {"far": {"task": "arithmetc"}}},
        rollout={"top_p": 0.9},
    )
    assert time.perf_counter() - start < 2
    text = "\n".join(found)
    for expected in (
        "student.dtyp: got 'dtyp', expected a known key, change: write 'dtype'",
        "tasks.0.opperands: got 'opperands', expected an option of the task arithmetic, change: write 'operands'",
        "optimizer.learning_rate: got -1, expected greater than 0",
        "evaluate.sets.far.task: got 'arithmetc', expected a known task",
        "rollout.top_p: got 0.9, expected untruncated sampling",
        "student.model: got './nowhere', expected a folder or file that exists",
    ):
        assert expected in text, expected
    assert len(found) == 6


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (dict(signals={"distill": {"coef": 1.0}}), "signals.distill.coef: got 1.0, expected a teacher for every task"),
        (dict(signals={"outcome": {"coef": 0.0}}), "signals: got 'every coef 0', expected a signal to learn from"),
        (
            dict(rollout={"num_generations": 1}),
            "rollout.num_generations: got 1, expected at least 2 with signals.outcome",
        ),
        (dict(signals={"distill": {"clip": 3.0}}), r"signals.distill: got ['clip'], expected keys that act"),
        (
            dict(teachers={"t": {"model": "tiny:llama-200k"}}),
            "teachers.t: got 't', expected a teacher that some stage asks",
        ),
        (
            dict(teachers={"t": {"model": "student"}}, signals={"distill": {"coef": 1}}),
            "teachers.t.hint: got '', expected a hint",
        ),
        (
            dict(teachers={"t": {"model": "student", "hint": "{solutoin}"}}, signals={"distill": {"coef": 1}}),
            "teachers.t.hint: got ['solutoin'], expected placeholders {solution}, {answer}",
        ),
        (dict(student={"model": "tiny:lama"}), "student.model: got 'tiny:lama', expected tiny: and one of"),
        (
            dict(tasks=[{"task": "arithmetic"}, {"task": "arithmetic"}]),
            "tasks: got 'arithmetic', expected a name of its own",
        ),
        (dict(tasks=[]), "tasks: got [], expected"),
        (dict(name="a/b"), "name: got 'a/b'"),
        (
            dict(kind="sft", signals={"outcome": {"coef": 2.0}}),
            "signals: got ['outcome'], expected a stage that it acts on (all stages are of kind sft)",
        ),
        (dict(supervised={"batch_size": 3}), "supervised: got ['batch_size'], expected a stage that it acts on"),
        (
            dict(stages=[{"name": "x", "student": {"model": "stage:y"}}, {"name": "y"}]),
            "stages.x.student.model: got 'stage:y', expected an earlier stage, and there is none",
        ),
        (
            dict(stages=[{"name": "x"}], compare={"stages": ["z"]}),
            "compare.stages: got 'z', expected stages of this recipe (x)",
        ),
        (dict(stages=[{"name": "x"}, {"name": "x"}]), "stages.x.name: got 'x', expected a name of its own"),
        (dict(stages=[{"steps": 1}]), "stages.0: got {'steps': 1}, expected a mapping with a name"),
    ],
)
def test_each_kind_of_problem_is_named_with_what_to_change(tmp_path, changes, expected):
    text = "\n".join(problems(tmp_path, **changes))
    assert expected in text and "change" in text


TEACHER = dict(teachers={"t": {"model": "tiny:llama-200k"}})


@pytest.mark.parametrize(
    ("distill", "expected"),
    [
        (
            dict(gradient="direct"),
            "signals.distill.gradient: got 'direct', expected a use that teaches (k1 used as back_propagated",
        ),
        (
            dict(form="full", gradient="policy"),
            "signals.distill.gradient: got 'policy', expected a use that teaches (state_kl used as policy_gradient",
        ),
        (dict(form="top_k", gradient="policy"), "does not depend on the sampled token"),
        (dict(estimator="k2", gradient="policy"), "the expected gradient is that of no KL"),
        (dict(estimator="k3", gradient="policy"), "reverse KL MINUS forward KL"),
        (
            dict(form="top_k", divergence="cross_entropy"),
            "expected reverse, forward or jensen_shannon with form: top_k",
        ),
        (
            dict(form="full", divergence="jensen_shannon", jsd_beta=0.0),
            "signals.distill.jsd_beta: got 0.0, expected greater than 0",
        ),
        (dict(top_k=3), "signals.distill.top_k: got 'top_k', expected a key that acts"),
        (dict(form="full", clip=3.0), "signals.distill.clip: got 'clip', expected a key that acts"),
        (dict(remainder="renormalize"), "signals.distill.remainder: got 'remainder', expected a key that acts"),
    ],
)
def test_forms_that_teach_nothing_or_have_no_effect_are_refused_before_anything_loads(tmp_path, distill, expected):
    text = "\n".join(problems(tmp_path, signals={"distill": {"coef": 1.0, **distill}}, **TEACHER))
    assert expected in text


def test_a_reference_by_k1_and_cispo_with_a_dual_clip_are_refused(tmp_path):
    (one,) = problems(tmp_path, signals={"reference": {"coef": 1.0, "estimator": "k1"}})
    assert one.startswith("signals.reference.estimator: got 'k1', expected a use that teaches")
    (two,) = problems(tmp_path, signals={"outcome": {"loss": "cispo", "dual_clip": 3.0}})
    assert "cispo has a token ratio and no dual clip" in two


@pytest.mark.parametrize("rollout", [dict(top_p=0.9), dict(top_k=5), dict(min_p=0.1)])
def test_truncated_sampling_needs_a_corrected_ratio_or_a_signal_without_policy_gradient(tmp_path, rollout):
    (found,) = problems(tmp_path, rollout=rollout)
    assert "a policy gradient is of the whole distribution" in found
    read_plan(write(tmp_path, rollout=rollout, signals={"importance": {"mode": "token_truncate"}}), [])
    direct = {"outcome": {"coef": 0.0}, "distill": {"coef": 1.0, "form": "top_k", "remainder": "renormalize"}}
    read_plan(write(tmp_path, rollout=rollout, signals=direct, **TEACHER), [])


def test_a_problem_of_a_stage_is_named_with_the_stage_and_one_of_the_base_once(tmp_path):
    found = problems(tmp_path, stages=[{"name": "a", "steps": 0}, {"name": "b"}], optimizer={"learning_rate": 0})
    assert [f.partition(":")[0] for f in found] == ["optimizer.learning_rate", "stages.a.steps"]


def test_unreadable_files_and_overrides_say_what_to_do(tmp_path):
    for path, message in (
        ("none.yaml", "does not exist"),
        ("bad.yaml", "is not YAML"),
        ("list.yaml", "expected `key: value`"),
    ):
        (tmp_path / "bad.yaml").write_text("a: [")
        (tmp_path / "list.yaml").write_text("- 1")
        with pytest.raises(InputError, match=message):
            read_plan(str(tmp_path / path), [])
    for override, message in (
        ("steps", "expected key.sub=value"),
        ("stages.a.steps=1", "names none of|plain value|stages"),
        ("steps=[", "not YAML"),
    ):
        with pytest.raises(InputError, match=message):
            read_plan(write(tmp_path, stages=[{"name": "x"}]), [override])


def test_a_model_folder_without_tokenizer_is_named(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    (found,) = problems(tmp_path, student={"model": str(folder)})
    assert "no tokenizer" in found


def test_a_malformed_row_of_a_data_set_is_named_with_file_and_line(tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "a", "answer": "1"}\n\n{"prompt": "b"}\nnot json\n')
    (found,) = problems(tmp_path, tasks=[{"task": "dataset", "path": str(data)}])
    assert (
        f"{data}:2: empty line" in found
        and f"{data}:3: nothing in column 'answer'" in found
        and f"{data}:4: not JSON" in found
    )


def test_an_override_beats_the_file_in_every_stage_that_sets_the_key_itself():
    tree = {"a": {"b": 1}, "stages": [{"name": "x", "a": {"b": 2}}, {"name": "y", "a": {"c": 3}}, {"name": "z"}]}
    found = apply_overrides(tree, ["a.b=7", "stages.y.a.c=8"])
    assert found == {
        "a": {"b": 7},
        "stages": [{"name": "x", "a": {"b": 7}}, {"name": "y", "a": {"c": 8}}, {"name": "z"}],
    }


def test_the_quickstart_takes_another_form_as_an_override_and_says_what_stands_in_its_way():
    recipe = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
    with pytest.raises(RecipeError, match=r"override it: signals\.distill\.clip=null"):
        load_plan(recipe, ["signals.distill.form=full"])
    plan = load_plan(recipe, ["signals.distill.form=full", "signals.distill.clip=null"])
    forms = {stage.name: (stage.signals.distill.form, stage.signals.distill.clip) for stage in plan.stages}
    assert forms["opd"] == forms["both"] == ("full", None)
