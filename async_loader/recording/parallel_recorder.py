"""A parallel environment of PettingZoo that adds its steps to a table, one stream an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from async_loader.errors import ConfigError, SchemaError
from async_loader.name_hints import explain_wrong_names
from async_loader.recording.env_schema import schema_of
from async_loader.recording.opening import (
    EpisodeStream,
    Recording,
    copied,
    stream_numbers,
)
from async_loader.table import Table, Writer

_Step = tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any], dict[Any, Any], dict[Any, Any]]


class ParallelRecorder(Recording):
    """A parallel environment whose steps are added to a table: each agent's to a stream of its own.

    As `Recorder`. An agent that leaves ends its episode with its own last observation, the others
    go on; agents may come later. A table's field ``agent`` gets the agent's place in ``agents``.
    Other attributes are those of the environment.

    Threads: one at a time.

    Parameters
    ----------
    env : pettingzoo.ParallelEnv
        Or any object with its methods.
    table : Table | Writer
    stack, fields, timeout_s : optional
        As of `Recorder`. Values of `record` are dicts by agents.
    agents : sequence, optional
        Record the steps of these only; by default of all ``possible_agents``, which then need the
        same spaces.

    Attributes
    ----------
    env : pettingzoo.ParallelEnv
    recorded : tuple
        The agents whose steps are recorded.

    Raises
    ------
    ConfigError
        If agents have different spaces.
    SchemaError
        For a table without a field that a recorder writes. The first step names another misfit.
    """

    @explain_wrong_names
    def __init__(
        self,
        env: Any,
        table: Table | Writer,
        *,
        stack: int = 1,
        fields: Mapping[str, Any] | None = None,
        agents: Sequence[Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        wanted = schema_of(env, stack=stack, fields=fields, agents=agents)
        self.env = env
        self.recorded = tuple(env.possible_agents if agents is None else agents)
        self._open(table, "writer", None, wanted, "agent")
        own: Any = self._writer.stream
        self._episodes = {
            agent: EpisodeStream(self._writer, self._fields, (own, next(stream_numbers)), timeout_s)
            for agent in self.recorded
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env, name)

    def step(self, actions: Mapping[Any, Any]) -> _Step:
        """Make a step of the environment, and add one of each agent that acted.

        As `Recorder.step`: after a Timeout the call may be made again.
        """
        made: _Step = self._step(actions)
        for agent, episode in self._episodes.items():
            if not episode.begun and agent in made[0] and agent in self.env.agents:
                episode.begin(made[0][agent])
        return made

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Begin an episode of all agents; those under way end as truncated."""
        self._check_open()
        self._cut()
        observations, infos = self.env.reset(seed=seed, options=options)
        for agent in self.recorded:
            if agent in observations:
                self._episodes[agent].begin(observations[agent])
        return observations, infos

    def _checked(self, action: Any) -> dict[Any, tuple[Any, dict[str, Any]]]:
        acting = [agent for agent in self.recorded if agent in action]
        for agent in acting:
            if not self._episodes[agent].begun:
                raise ConfigError(
                    f"agent {agent!r} acts, and has no observation: call reset() before "
                    "step(), and give actions of the agents in env.agents only"
                )
        return {agent: (copied(action[agent]), self._extra_of(agent)) for agent in acting}

    def _add(self, action: Any, made: _Step, extra: dict[str, Any]) -> None:
        for agent in list(action):
            if not all(agent in values for values in made[:4]):
                raise SchemaError(
                    f"agent {agent!r} acted, and the environment returned nothing of it: an agent "
                    "that leaves is returned once more, with its end"
                )
            after, reward, terminated, truncated = (values[agent] for values in made[:4])
            its_action, its_extra = action[agent]
            self._episodes[agent].add(its_action, reward, after, terminated, truncated, its_extra)
            del action[agent]

    def _extra_of(self, agent: Any) -> dict[str, Any]:
        self._fields.check_extra(self._extra)
        values = {}
        for name, given in self._extra.items():
            if agent not in given:
                raise SchemaError(f"record({name}=...) has no value of agent {agent!r}, which acts")
            values[name] = given[agent]
        if "agent" in self._fields.names:
            values["agent"] = self.recorded.index(agent)
        return values

    def _cut(self) -> None:
        self._pending, self._extra = None, {}
        for episode in self._episodes.values():
            episode.cut()
