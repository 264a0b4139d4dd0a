"""The training loop. Start reading here: one line per stage, in the order data flows."""

from codriver.run import Run, Stop


def train(run: Run) -> Stop:
    """Collect, verify, score, allocate, learn, observe; until the steps run out or a stopping rule fires."""
    for step in range(run.next_step, run.num_steps):
        episodes = run.collect(step)  # sampled from policy version `step`, or at most `max_lag` older
        verified = run.verify(episodes)  # each episode's outcome, or the reason it has none
        scored = run.score(verified)  # what every signal says about every token; no gradient yet
        allocated = run.allocate(scored)  # which signal reaches which token, with which weight
        update = run.learn(allocated)  # one optimizer step on the whole batch; raises on a non-finite loss
        stop = run.observe(step, allocated, update)  # metrics, token records, stopping rules
        run.publish(version=step + 1)  # the engine samples from these weights next; a checkpoint when due
        if stop:
            return stop
    return Stop("all steps done")
