"""The toy comparison of estimators on tables of logits, with the signals of this project, into benchmarks/results/.

    python benchmarks/estimators.py [--seeds 10] [--numpy FILE]

A task of 4 tokens from a vocabulary of 8; student and teacher are tables of logits, one row per prefix (585), so this
ranks estimators, not methods: nothing generalises. Float64, one learning rate, 320 steps of Adam, and the exact
expected reward over all 4096 sequences. All seeds of a method train at once. Each seed draws from its own generator in
the order of the numpy script that this redoes, so the two see the same rollouts; `--numpy FILE` takes that script's
output and stores how far apart the means over its ten seeds are.
Shape suffixes:  S seeds, B rollouts, L tokens, N prefixes, V vocabulary, K support.
"""

import argparse
import itertools
import json
import platform
import re
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from codriver.signals import divergence, outcome, reference, reweight, sampled, support, surrogate, trust_region

ROOT = Path(__file__).parents[1]
V, L, STEPS, LEARNING_RATE = 8, 4, 320, 0.25
LOG = (5, 10, 20, 40, 80, 160, 320)
BASE = np.cumsum([0] + [V**n for n in range(L)])
N = int(BASE[L])
SEQUENCES = np.array(list(itertools.product(range(V), repeat=L)))


def prefixes(tokens: np.ndarray) -> np.ndarray:
    """The row of each token's prefix: level offset plus the prefix read as a number in base V."""
    rows, number = np.zeros(tokens.shape, int), np.zeros(tokens.shape[:-1], int)
    for t in range(L):
        rows[..., t] = BASE[t] + number
        number = number * V + tokens[..., t]
    return rows


ROWS = torch.as_tensor(prefixes(SEQUENCES))


def dense_reward() -> np.ndarray:
    """Of all sequences: y3 = y0 + 3 y1 + 5 y2 mod 8, and y1 != y0. A random student succeeds in 11 %."""
    y = SEQUENCES.T
    return ((y[0] + 3 * y[1] + 5 * y[2]) % V == y[3]).astype(float) * (y[1] != y[0])


def sparse_reward() -> np.ndarray:
    """Four sequences of 4096 are right."""
    reward = np.zeros(len(SEQUENCES))
    reward[np.random.default_rng(3).choice(len(SEQUENCES), 4, replace=False)] = 1
    return reward


def soft_optimal(reward: np.ndarray, temperature: float = 0.6) -> Tensor:
    """The teacher's log-probs [N, V]: from the soft value of each next token, plus noise, so that it errs at times."""
    g, value, logits = np.random.default_rng(5), torch.as_tensor(reward).reshape(-1, V), torch.zeros(N, V).double()
    for t in range(L - 1, -1, -1):
        noise = torch.as_tensor(g.normal(size=tuple(value.shape)) * 0.5)
        level = value / (temperature * 0.25) + noise
        logits[BASE[t] : BASE[t + 1]] = level
        value = (level.softmax(-1) * value).sum(-1).reshape(-1, V) if t else value
    return logits.log_softmax(-1)


def expected_reward(logits: Tensor, reward: np.ndarray) -> Tensor:
    logp = logits.log_softmax(-1)[..., ROWS, torch.as_tensor(SEQUENCES)].sum(-1)
    return (logp.exp() * torch.as_tensor(reward)).sum(-1)


class Rollouts:
    """What a method may look at: rows [S, B, L, V] of student and teacher, the sampled tokens and their reward."""

    def __init__(self, logits: Tensor, teacher: Tensor, rewards: np.ndarray, generators: list, size: int) -> None:
        p = logits.detach().softmax(-1).cumsum(-1).numpy()
        seeds = np.arange(len(generators))[:, None]
        tokens, number = np.zeros((len(generators), size, L), int), np.zeros((len(generators), size), int)
        for t in range(L):
            u = np.stack([g.random(size) for g in generators])[..., None]
            tokens[..., t] = np.minimum((p[seeds, BASE[t] + number] < u).sum(-1), V - 1)
            number = number * V + tokens[..., t]
        rows = torch.as_tensor(prefixes(tokens))
        self.generators, self.y = generators, torch.as_tensor(tokens)
        self.logits = logits[torch.as_tensor(seeds)[..., None], rows]
        self.logp_V, self.teacher_V = divergence.log_probs(self.logits), teacher[rows]
        self.logp, self.teacher = self.of_token(self.logp_V), self.of_token(self.teacher_V)
        self.reward = torch.as_tensor(rewards[number])
        self.mask = torch.ones_like(self.logp, dtype=torch.bool)

    def of_token(self, logp_V: Tensor) -> Tensor:
        return logp_V.gather(-1, self.y[..., None]).squeeze(-1)

    def policy_loss(self, advantage: Tensor) -> Tensor:
        return surrogate.clipped(self.logp, self.logp.detach(), advantage)

    def log_ratio(self) -> Tensor:
        return sampled.log_ratio_advantage(self.teacher, self.logp)

    def outcome(self) -> Tensor:
        group = torch.arange(len(self.generators))[:, None].expand_as(self.reward)
        advantage = outcome.group_advantage(self.reward.flatten(), group.flatten()).view_as(self.reward)
        return advantage[..., None].expand_as(self.logp)

    def state_kl(self) -> Tensor:
        return divergence.reverse_kl_logp(self.logp_V, self.teacher_V)

    def trust(self) -> Tensor:
        uniform = torch.as_tensor(np.stack([g.random(self.logp.shape[1:]) for g in self.generators]))
        return trust_region.trusted(trust_region.acceptance(self.logp, self.teacher), uniform)

    def listed(self, k: int, *, of_student: bool = False, with_sampled: bool = False) -> tuple[Tensor, Tensor]:
        ids = support.top_k_ids(self.logp_V if of_student else self.teacher_V, k)
        ids = support.with_sampled_ids(ids, self.y) if with_sampled else ids
        return support.gather_logp(self.logp_V, ids), support.gather_logp(self.teacher_V, ids)


def on_outliers(r: Rollouts) -> Tensor:
    return trust_region.outlier_forward_kl(
        r.policy_loss(r.log_ratio()), support.support_cross_entropy(*r.listed(2)), r.trust()
    )


def on_list(k: int, remainder: str, **how: bool) -> Callable[[Rollouts], Tensor]:
    return lambda r: support.support_reverse_kl(*r.listed(k, **how), remainder=remainder)


METHODS: dict[str, tuple[str, Callable[[Rollouts], Tensor]]] = {
    "grpo": ("GRPO", lambda r: r.policy_loss(r.outcome())),
    "opd": ("log-ratio as advantage (OPD)", lambda r: r.policy_loss(r.log_ratio())),
    "opd_rtg": (
        "OPD, reward-to-go",
        lambda r: r.policy_loss(sampled.discounted(r.log_ratio(), r.mask, discount=1.0)),
    ),
    "vopd": (
        "OPD, baseline of the state (vOPD)",
        lambda r: r.policy_loss(sampled.state_baseline_advantage(r.teacher, r.logp, r.state_kl())),
    ),
    "full": ("full reverse KL", lambda r: divergence.reverse_kl(r.logits, r.teacher_V)),
    "fkl": ("full forward KL", lambda r: divergence.forward_kl(r.logits, r.teacher_V)),
    "lsmT@2": ("top-2 of the teacher, renormalize", on_list(2, "renormalize")),
    "lsmT@4": ("top-4 of the teacher, renormalize", on_list(4, "renormalize")),
    "lsmT+y@2": ("top-2 and the sampled token, renormalize", on_list(2, "renormalize", with_sampled=True)),
    "tailT@2": ("top-2 of the teacher, tail", on_list(2, "tail")),
    "gklT@2": ("top-2 of the teacher, generalized", on_list(2, "generalized")),
    "gklS@2": ("top-2 of the student, generalized", on_list(2, "generalized", of_student=True)),
    "kdrl": (
        "GRPO + k2 back-propagated (KDRL, coefficient 1)",
        lambda r: reweight.kdrl_loss(r.policy_loss(r.outcome()), r.logp, r.teacher, coefficient=1.0),
    ),
    "trmask": (
        "OPD, outliers masked (TrOPD)",
        lambda r: r.policy_loss(trust_region.mask_outliers(r.log_ratio(), r.trust())),
    ),
    "trfkl@2": ("OPD, forward KL on outliers (TrOPD, top-2)", on_outliers),
    # The two that the recipe refuses, written out, since the functions refuse them too or leave them to the wiring.
    "kladv": ("refused: KL of the state as advantage", lambda r: r.policy_loss(-r.state_kl().detach())),
    "k1dir": ("refused: k1 back-propagated", lambda r: r.logp - reference.floored(r.teacher)),
}


def normal(seed: int, size: float, shift: Tensor | float = 0.0) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(N, V)) * size) + shift


def train(
    loss_of: Callable[[Rollouts], Tensor], start: Tensor, teacher: Tensor, reward: np.ndarray, generators: list, B: int
) -> dict:
    """Reward at the logged steps [S] and the norms of the gradient, for all seeds at once."""
    logits = start.clone().requires_grad_()
    adam = torch.optim.Adam([logits], lr=LEARNING_RATE, betas=(0.9, 0.99), eps=1e-8)
    found, norms = {}, []
    for step in range(1, STEPS + 1):
        adam.zero_grad()
        loss = loss_of(Rollouts(logits, teacher, reward, generators, B))
        (loss.sum() / (B * L)).backward()
        norms.append(logits.grad.flatten(1).norm(dim=1))
        adam.step()
        if step in LOG:
            found[step] = expected_reward(logits.detach(), reward)
    norm = torch.stack(norms)
    return {"reward": found, "norm_median": norm.quantile(0.5, 0).mean(), "norm_max": norm.amax(0).mean()}


def settings() -> dict[str, dict]:
    """The four tables: reward, teacher, rollouts per step, start of seed s, methods."""
    dense, sparse = dense_reward(), sparse_reward()
    teacher = soft_optimal(dense)
    mixed = ("opd", "vopd", "full", "lsmT@2", "lsmT+y@2", "trmask", "trfkl@2")
    warm = ("opd", "vopd", "full", "lsmT@2", "lsmT@4", "lsmT+y@2")
    rare = ("grpo", "opd", "full", "kdrl", "trfkl@2")
    return {
        "A": dict(title="dense reward, cold start, 32 rollouts a step", reward=dense, teacher=teacher, B=32,
                  start=None, methods=tuple(METHODS)),
        "B": dict(title="mismatched start: student's logits of deviation 3, sharpened teacher, 32 rollouts a step",
                  reward=dense, teacher=(teacher * 1.5).log_softmax(-1), B=32, start=lambda s: normal(s, 3.0),
                  methods=mixed),
        "C": dict(title="sparse reward: 4 of 4096 sequences, cold start, 32 rollouts a step", reward=sparse,
                  teacher=soft_optimal(sparse), B=32, start=None, methods=rare),
        "D": dict(title="warm start: half-strength teacher and noise, 4 rollouts a step", reward=dense,
                  teacher=teacher, B=4, start=lambda s: normal(s, 0.5, 0.5 * teacher), methods=warm),
    }  # fmt: skip


def figures(x_S: Tensor) -> dict[str, float | None]:
    deviation = float(x_S.std()) if len(x_S) > 1 else None
    width = None if deviation is None else 1.96 * deviation / len(x_S) ** 0.5
    return {"mean": round(float(x_S.mean()), 4), "sd": deviation and round(deviation, 4),
            "half_width": width and round(width, 4), "mean_10": round(float(x_S[:10].mean()), 4)}  # fmt: skip


def read_numpy(text: str) -> dict[tuple[str, str], list[float]]:
    """(table, method) -> reward at `LOG`, from the output of the numpy script."""
    found, table = {}, ""
    for line in text.splitlines():
        table = line[0] if re.match(r"[A-D]\. ", line) else table
        words = line.split()
        if line.startswith("  ") and words[0] in METHODS:
            found[table, words[0]] = [float(x) for x in words[1 : 1 + len(LOG)]]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--numpy", type=Path, help="output of the numpy script, to compare with")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "estimators.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = read_numpy(args.numpy.read_text()) if args.numpy else {}
    begin, tables = time.time(), {}
    for name, s in settings().items():
        tables[name] = {"title": s["title"], "teacher": round(float(expected_reward(s["teacher"], s["reward"])), 4)}
        tables[name]["methods"] = rows = {}
        for method in s["methods"]:
            generators = [np.random.default_rng(seed) for seed in range(args.seeds)]
            if s["start"] is None:  # the generator that samples has drawn the first weights
                start = torch.stack([torch.as_tensor(g.normal(size=(N, V)) * 0.5) for g in generators])
            else:
                start = torch.stack([s["start"](seed) for seed in range(args.seeds)])
            run = train(METHODS[method][1], start, s["teacher"], s["reward"], generators, s["B"])
            rows[method] = {"label": METHODS[method][0]}
            rows[method]["reward"] = {str(step): figures(x) for step, x in run["reward"].items()}
            rows[method] |= {key: round(float(run[key]), 4) for key in ("norm_median", "norm_max")}
            if (name, method) in known:
                rows[method]["numpy"] = dict(zip(map(str, LOG), known[name, method], strict=True))
            print(f"{time.time() - begin:5.0f} s  {name} {method:9s} {rows[method]['reward']['320']}", flush=True)
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    result = {
        "seeds": args.seeds, "steps": STEPS, "learning_rate": LEARNING_RATE, "tables": tables,
        "seconds": round(time.time() - begin), "threads": 1, "commit": found.stdout.strip() or "unknown",
        "machine": f"{platform.machine()}, {platform.python_version()}",
        "versions": {package: version(package) for package in ("torch", "numpy")},
    }  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
