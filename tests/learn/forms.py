"""Every form of every signal that a recipe can ask for, with the settings that reach it."""

from codriver.learn.distill_terms import DistillSettings, distill_term
from codriver.learn.objective import importance_correction, outcome_term, reference_term, supervised_term

TIS = importance_correction(mode="token_truncate", low=0.0, high=1.5)
GEOMETRIC = importance_correction(mode="geometric_mask", low=0.01, high=100.0)

DISTILL = {
    "sampled": {},
    "clipped": {"clip": 1.0},
    "log bound": {"bound": "log"},
    "power bound": {"bound": "power"},
    "floor bound": {"bound": "floor"},
    "discounted": {"discount": 0.7},
    "discounted, length-normalised": {"discount": 1.0, "length_normalised": True},
    "whole-state baseline": {"baseline": "state"},
    "outliers masked": {"outlier": "mask"},
    "outliers masked at random": {"outlier": "mask", "trust": "stochastic"},
    "outliers clipped": {"outlier": "clip", "outlier_bound": 0.5},
    "outliers by forward KL": {"outlier": "forward_kl", "top_k": 5},
    "prefix weights": {"prefix_strength": 0.5},
    "entropy-aware": {"entropy_threshold": 0.5, "top_k": 5},
    "k2, direct": {"gradient": "direct", "estimator": "k2"},
    "k3, direct": {"gradient": "direct", "estimator": "k3"},
    "full reverse": {"form": "full"},
    "full forward": {"form": "full", "divergence": "forward"},
    "full Jensen-Shannon": {"form": "full", "divergence": "jensen_shannon", "jsd_beta": 0.3},
    "skewed reverse": {"form": "full", "divergence": "skewed_reverse"},
    "skewed forward": {"form": "full", "divergence": "skewed_forward"},
    "cross-entropy": {"form": "full", "divergence": "cross_entropy"},
    "temperature squared": {"form": "full", "temperature": 2.0},
    "local support matching": {"form": "top_k", "top_k": 5, "remainder": "renormalize"},
    "local support with the sampled token": {
        "form": "top_k",
        "top_k": 5,
        "remainder": "renormalize",
        "with_sampled": True,
    },
    "tail": {"form": "top_k", "top_k": 5},
    "tail, student's list": {"form": "top_k", "top_k": 5, "support": "student"},
    "tail, union": {"form": "top_k", "top_k": 5, "support": "union"},
    "generalized": {"form": "top_k", "top_k": 5, "remainder": "generalized"},
    "stop-gradient": {"form": "top_k", "top_k": 5, "remainder": "stop_gradient"},
    "top-K forward": {"form": "top_k", "top_k": 5, "divergence": "forward"},
    "top-K Jensen-Shannon": {"form": "top_k", "top_k": 5, "divergence": "jensen_shannon"},
}
OUTCOME = {
    "GRPO": {},
    "dual clip": {"dual_clip": 3.0},
    "GSPO": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    "CISPO": {"loss": "cispo", "clip_high": 4.0},
    "Distilled RL": {"reweight": "distilled_rl"},
    "RLSD": {"reweight": "rlsd"},
    "TIS": {"correction": TIS},
    "geometric mask": {"correction": GEOMETRIC},
}
ALL = (
    [("distill", name) for name in DISTILL]
    + [("outcome", name) for name in OUTCOME]
    + [("reference", "k2"), ("reference", "k3"), ("supervised", "likelihood")]
)


def term_of(signal: str, name: str):
    if signal == "distill":
        return distill_term(DistillSettings(**DISTILL[name]))
    if signal == "outcome":
        return outcome_term(**({"clip_low": 0.2, "clip_high": 0.28} | OUTCOME[name]))
    return reference_term(estimator=name) if signal == "reference" else supervised_term()
