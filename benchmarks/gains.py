"""What a user gains by each row: a sentence for each, by suite and key."""

GAINS = {
    ("loader", "1"): "Work in Python for each sample keeps a learner fed with fewer cores.",
    ("loader", "2"): "A source that returns a list of dicts costs little more than the stacking.",
    ("loader", "11"): "A training step waits for microseconds where batches are made ahead, and "
    "loses little of its own speed to them.",
    ("loader", "12"): "A script ends at once, and leaves no process, thread or memory behind.",
    ("loader", "start"): "A script, a test or a notebook cell begins to train sooner.",
    ("replay", "add"): "An environment loop spends its time in the environment.",
    ("replay", "extend"): "Vector environments are not slowed by storing their steps.",
    ("replay", "dqn"): "An update of a small network takes the time of the network.",
    ("replay", "linked"): "Observations are stored once, in half the memory, and are as quick to "
    "draw.",
    ("replay", "nstep"): "Returns of several steps come with the draw: no wrapper computes them, "
    "and n may change in a run.",
    ("replay", "memory"): "A buffer of a million Atari steps fits the memory of one machine.",
    ("replay", "4"): "A learner with small batches spends its time in the network.",
    ("replay", "5"): "Large batches, as for a large network or an accelerator, come in time.",
    ("replay", "6"): "Atari batches come at the speed of the memory.",
    ("replay", "7"): "Prioritized replay costs little more than uniform replay.",
    ("trajectories", "sequences"): "A recurrent learner waits for its network, not for its "
    "sequences.",
    ("trajectories", "frames"): "Sequences of frames come at the speed of the memory.",
    (
        "trajectories",
        "sizes",
    ): "A larger table draws as quickly as a small one, while actors write.",
    ("trajectories", "episodes"): "Whole episodes, for returns and for transformers, come padded "
    "in one array.",
    ("feeder", "both"): "Actors and a learner share one table without slowing each other.",
    ("feeder", "sample"): "A batch that is asked for comes within a round trip.",
    ("feeder", "8"): "A table in another process is nearly as quick to draw from as one's own.",
    ("feeder", "8-atari"): "A learner on frames is fed by a table in another process.",
    ("feeder", "9"): "More actors fit one table before it holds them up.",
    ("feeder", "9-atari"): "Actors that send frames are acknowledged as fast as they make them.",
    ("feeder", "10"): "A learner on another host gets what the network carries.",
    ("doors", "ding-decode"): "A DI-engine script decodes with its workers, faster, by one "
    "changed import.",
    ("doors", "ding-dicts"): "The same script collates faster without workers too.",
    ("doors", "ding-stalled"): "One slow sample does not hold up the others.",
    ("doors", "fastai-arrays"): "A fastai script reads arrays faster by one changed import.",
    ("doors", "fastai-decode"): "Each epoch begins at once: workers outlive it.",
    ("doors", "fastai-stalled"): "One slow item does not hold up the others.",
    ("doors", "gluon-arrays"): "A gluon script reads arrays faster by one changed import.",
    ("doors", "gluon-decode"): "Each epoch begins at once, and workers pass on less.",
    ("doors", "gluon-items"): "A dataset of one's own is as quick as before, or quicker.",
    ("doors", "gluon-stalled"): "One slow item does not hold up the others.",
    ("doors", "gluonnlp-arrays"): "A sharded loader is as quick as one that is not.",
    ("doors", "torch-arrays"): "A torch script reads arrays faster by one changed import.",
    ("doors", "torch-decode"): "Workers outlive epochs, and pass batches on in shared memory that "
    "is used again.",
    ("doors", "torch-stalled"): "One slow item does not hold up the others.",
    ("replay", "codecs"): "Frames take a fraction of their memory, for microseconds each.",
    ("replay", "disk"): "A table larger than the memory is read as fast as the disk allows.",
    ("trajectories", "hindsight"): "Relabelled goals cost the same whatever an episode's length.",
    ("gpu", "draws-small"): "Small batches come into the accelerator's memory at little cost.",
    ("gpu", "draws-atari"): "Batches of frames reach the accelerator as fast as one thread gathers "
    "them; more threads gather more.",
    ("gpu", "graph"): "A learner whose update is a CUDA graph gets its batches in the graph's "
    "tensors.",
    ("gpu", "update-atari"): "An accelerator computes while batches arrive, and does not wait for "
    "them.",
    ("gpu", "jobs"): "Decoded samples reach the accelerator at the rate of the workers.",
    ("rollouts", "fields"): "Many ragged fields cost little more than one.",
    ("rollouts", "tokens"): "Rewards that come later take one call.",
    ("rollouts", "one"): "One rollout is handed over in some milliseconds.",
    ("rollouts", "kills"): "A crash loses no prompt and trains none twice.",
    ("rollouts", "handover"): "A learner has its batch some milliseconds after the last reward.",
    ("feeder", "kept"): "A table that outlives a kill costs next to nothing.",
    ("scale", "small"): "Several hosts hold one table, at some times the rate of an actor of Ray.",
    ("scale", "atari"): "Frames from several shards arrive as fast as from one.",
    ("scale", "watch"): "Metrics and the dashboard may stay on: a feeder hardly notices them.",
    ("soak", "chaos"): "What was acknowledged is there, whatever dies.",
    ("soak", "connections"): "A port scan or a broken client does not end a run.",
    ("soak", "kept"): "A killed feeder goes on with what it had acknowledged.",
    ("soak", "memory"): "A run of weeks does not end for want of memory.",
    ("soak", "shards"): "A killed shard, directory or node stops no learner and doubles no step.",
    ("soak", "storm"): "Ctrl-C ends or interrupts a run, and loses nothing of it.",
}


def gain(suite: str, key: str) -> str:
    """Return the sentence of a row; empty for one that is not in the table."""
    return GAINS.get((suite, key), "")
