"""Settings of the demo, and the summary of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from async_loader.errors import ConfigError
from async_loader.lifecycle import seconds


@dataclass(frozen=True, kw_only=True)
class DqnSettings:
    """Settings of the network and its training.

    The defaults solved CartPole-v1 with seeds 0 to 4, within 14,100 updates.

    Attributes
    ----------
    obs_scale : tuple of float
        Divisors of the observations (cart's place and speed, pole's angle and angular speed): an
        episode ends at 2.4 m and 0.21 rad, with speeds around 2. Without scaling the network hardly
        sees the angle.
    hidden : int
        Width of the two hidden layers. 128 is enough for four observations, and fast on one core.
    batch_size : int
        Transitions per update.
    discount : float
        Gamma, below 1: values are in units of a pole that never falls, 1 / (1 - gamma) rewards.
    learning_rate, final_learning_rate : float
        Adam's step size, at first and after `decay_updates` updates (cosine in between). Large
        steps learn to balance within seconds, small ones keep the learned policy: late collapse is
        a known problem of DQN on CartPole.
    decay_updates : int
        Updates over which the learning rate falls.
    target_rate : float
        Share of the online network that the target network takes over in each update (Polyak
        averaging).
    policy_rate : float
        The same for the network of the actors.
    final_epsilon : float
        Share of random actions after exploration. Not zero: near-perfect episodes alone make a
        narrow buffer.
    explore_steps : int
        Environment steps over which the share of random actions falls linearly from 1 to
        `final_epsilon`.
    """

    obs_scale: tuple[float, ...] = (2.4, 2.0, 0.21, 2.0)
    hidden: int = 128
    batch_size: int = 256
    discount: float = 0.99
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-4
    decay_updates: int = 10_000
    target_rate: float = 0.03
    policy_rate: float = 0.01
    final_epsilon: float = 0.01
    explore_steps: int = 5_000

    def __post_init__(self) -> None:
        for name in ("hidden", "batch_size", "decay_updates", "explore_steps"):
            _at_least(1, self, name)
        if not 0.0 <= self.discount < 1.0:
            raise ConfigError(f"discount is {self.discount}: give at least 0 and less than 1")
        if not all(scale > 0.0 for scale in self.obs_scale):
            raise ConfigError(f"obs_scale is {self.obs_scale}: give numbers above 0")
        for name in ("target_rate", "policy_rate", "final_epsilon"):
            _between(0.0, 1.0, self, name)
        _above(0.0, self, "final_learning_rate")
        if not self.final_learning_rate <= self.learning_rate < math.inf:
            raise ConfigError(
                f"learning_rate is {self.learning_rate}, less than final_learning_rate or not "
                "finite: "
                f"give at least {self.final_learning_rate}"
            )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run of the demo, and its end conditions.

    Attributes
    ----------
    target : float
        Stop as solved when the mean return of the newest `window` finished episodes reaches this.
        Gymnasium calls CartPole-v1 solved at 475; 500 is the maximum.
    max_seconds : float
        Stop as not solved this long after the first batch.
    seed : int
        Seeds network, environments, exploration and batches. Two runs with one seed are similar but
        not equal: several processes share the work, and their relative speed varies.
    num_actors : int
        Processes that step environments, 256 at most.
    num_envs : int
        CartPoles per actor, 4,096 at most.
    window : int
        Number of finished episodes, of the acting policy, in the mean return.
    capacity : int
        Steps that the table holds.
    warmup_steps : int
        Environment steps before the first update.
    steps_per_update : float
        Environment steps inserted per update after the warm-up: the table's limiter ties actors and
        learner together, so that a busy machine makes the demo slower but not different.
    publish_every : int
        Updates between two publications of the weights.
    dashboard_port : int, optional
        Serve the feeder's dashboard at this port of the loopback.
    """

    target: float = 475.0
    max_seconds: float = 180.0
    seed: int = 0
    num_actors: int = 2
    num_envs: int = 4
    window: int = 20
    capacity: int = 50_000
    warmup_steps: int = 1_000
    steps_per_update: float = 4.0
    publish_every: int = 10
    dashboard_port: int | None = None
    dqn: DqnSettings = field(default_factory=DqnSettings)

    def __post_init__(self) -> None:
        _between(0, 2**32 - 1, self, "seed")
        _between(1, _MOST_ACTORS, self, "num_actors")
        _between(1, _MOST_ENVS, self, "num_envs")
        for name in ("window", "capacity", "publish_every"):
            _at_least(1, self, name)
        _at_least(self.dqn.batch_size, self, "warmup_steps")
        _at_least(self.warmup_steps, self, "capacity")
        seconds("max_seconds", self.max_seconds)
        _above(0.0, self, "max_seconds")
        _above(0.0, self, "steps_per_update")
        _between(1.0, 500.0, self, "target")


@dataclass(frozen=True)
class Episode:
    """One finished episode: its return,
    and the environment steps and seconds of learning of the run at its end.
    """

    total_reward: float
    env_steps: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Result of a run.

    Attributes
    ----------
    learner_wait_fraction : float
        Share of `seconds` in which the learner had no batch.
    limiter_wait_fraction : float
        The part of it in which the table's limiter allowed no draw: the actors were behind.
    seconds, start_seconds : float
        Since the first batch, and before it.
    waits_for : str
        Reason why there is no first batch yet; empty afterwards.
    inserts_per_s, samples_per_insert : float
        As counted by the feeder.
    policy_lag, policy_lag_s : float
        Between the policy of the actors' newest steps and the newest published one: updates, and
        seconds.
    drawn_policy_lag : float
        Updates between the policy that made a step and the update that learns from it, averaged
        over all batches.
    """

    settings: Settings
    solved: bool
    mean_return: float
    env_steps: int
    batches: int
    learner_wait_fraction: float
    limiter_wait_fraction: float
    seconds: float
    start_seconds: float
    waits_for: str
    inserts_per_s: float
    samples_per_insert: float
    policy_lag: float
    policy_lag_s: float
    drawn_policy_lag: float
    episodes: tuple[Episode, ...] = field(repr=False)


_MOST_ACTORS, _MOST_ENVS = 256, 4096  # more are a slip: they would fill a machine's memory


def _at_least(least: float, settings: object, name: str) -> None:
    value = getattr(settings, name)
    if not value >= least:
        raise ConfigError(f"{name} is {value}: give at least {least}")


def _above(bound: float, settings: object, name: str) -> None:
    value = getattr(settings, name)
    if not bound < value < math.inf:
        raise ConfigError(f"{name} is {value}: give a finite number above {bound}")


def _between(least: float, most: float, settings: object, name: str) -> None:
    value = getattr(settings, name)
    if not least <= value <= most:
        raise ConfigError(f"{name} is {value}: give a number from {least} to {most}")
