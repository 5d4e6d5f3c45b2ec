"""Names in messages: short names of callables and objects, and remedies for wrong keywords.

`SAY`, `LEAVE_OUT`, `_ATTRIBUTES` and `PUBLIC` are the only tables of old names and of names in
other libraries.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=type)

_SAY: tuple[tuple[str, str], ...] = (
    (
        "timeout timeout_sec timeout_seconds timeout_ms rate_limiter_timeout_ms patience",
        "timeout_s",
    ),
    ("buffer_size max_size maxsize maxlen max_len n", "size"),
    ("buffer_size max_size maxsize maxlen max_len max_capacity memory_size size", "capacity"),
    ("rate_limiter", "limiter"),
    ("env_dict signature spec specs data_spec fields", "schema"),
    (
        "observation_space action_space",
        "schema={'obs': observation_space, 'action': action_space, ...}",
    ),
    ("n_step nstep Nstep n multi_step", "n_steps"),
    ("n_step n_steps nstep Nstep n multi_step", "view=Transitions(n_steps=...)"),
    ("seq_len sequence_length slice_len traj_len n num_steps unroll_length", "length"),
    ("burnin warmup_steps lookback", "burn_in"),
    ("overlap period shift step", "stride"),
    ("episode_boundary", "boundary"),
    ("states stored_state hidden_state", "state"),
    ("transform transforms", "view"),
    ("goal_selection_strategy goal_strategy her_strategy relabel_strategy", "strategy"),
    ("n_sampled_goal replay_k future_k k", "relabel_fraction=k / (k + 1)"),
    ("her_ratio relabel_ratio relabel_prob future_p her_p ratio fraction", "relabel_fraction"),
    ("reward_fn reward_function reward_fun compute_reward_fn env", "compute_reward"),
    ("terminated_fn done_fn compute_done is_success success_fn", "compute_terminated"),
    ("desired_goal goal_key", "goal"),
    ("achieved_goal achieved_goal_key", "achieved"),
    ("transforms augment augmentation batch_transform postprocess", "transform"),
    ("lambda_ lmbda gae_lambda td_lambda trace_decay", "lam"),
    ("rewards", "reward"),
    ("values state_value baseline", "value"),
    ("q q_values action_value", "q_value"),
    ("next_values next_state_value final_value", "next_value"),
    ("bootstrap_value last_value last_values", "bootstrap"),
    ("behavior_log_prob log_mu behaviour_log_probs behavior_log_probs", "behaviour_log_prob"),
    ("log_pi target_log_probs", "target_log_prob"),
    ("rho_thresh clip_rho_threshold rho_clip", "rho_bar"),
    ("c_thresh clip_c_threshold c_clip", "c_bar"),
    ("discount discount_factor", "gamma"),
    ("new default_priority max_priority_within_buffer initial_priority", "new_priority"),
    ("alpha beta", "sampler=Prioritized(alpha=..., beta=...)"),
    ("epsilon priority_eps", "eps"),
    ("normalise normalization", "normalize"),
    ("min_size learning_starts warmup min_size_to_learn", "min_size_to_sample"),
    ("min_size_to_sample learning_starts warmup", "min_size"),
    ("min_size_to_sample learning_starts warmup min_size", "limiter=MinSize(...)"),
    ("samples_per_insert", "limiter=RateLimiter(samples_per_insert=...)"),
    ("ratio replay_ratio samples_per_insert_ratio sample_to_insert_ratio", "samples_per_insert"),
    ("max_diff min_diff max_deficit min_deficit error tolerance", "error_buffer"),
    ("stack_num frame_stack num_stack n_stack framestack", "stack"),
    ("pad padding_mode", "padding"),
    ("type kind", "dtype"),
    ("initial begin initial_value start_value", "start"),
    ("final end_value final_value last", "end"),
    ("steps n_steps total_steps duration anneal_steps num_steps iterations", "draws"),
    ("with_replacement replace", "replacement"),
    ("rank rank_based", "rank_prioritized"),
    ("buffer replay_buffer writer data_collector", "table"),
    ("extra extras extra_fields extra_keys", "fields"),
    ("extras fields infos extra_fields extra_keys", "extra"),
    ("table buffer replay_buffer to target", "into"),
    ("min_size samples_per_insert sample_to_insert_ratio", "rate_limiter, with min_size_to_sample"),
    ("n_envs num_env num_envs env", "envs"),
    ("autoreset_mode auto_reset", "autoreset"),
    ("delta_timestamps delta_indices", "windows"),
    ("root repo_id", "folder"),
    ("num_samples n size batch", "batch_size"),
    ("bs", "batch_size"),
    ("observation observations obs_ ob state states", "obs"),
    ("actions act acts", "action"),
    ("rew rews", "reward"),
    ("out out_tensors output outputs output_tensors out_buffers static_inputs", "into"),
    ("as_torch batch_type return_type output_format", "batch_format"),
    ("indices indexes idxs idxes idx ids id keys", "index"),
    ("priorities td_errors td_error prios p", "priority"),
    ("final_observation last_obs terminal_observation", "final_obs"),
    ("next_observation next_observations", "next_obs"),
    ("final_obs next_observation", "next_obs"),
    ("infos", "info"),
    ("done dones", "terminated"),
    ("stream_id episode_id env_id worker_id", "stream"),
    ("save checkpoint step", "number"),
    ("directory folder filename checkpoint_path", "path"),
    ("source table buffer dataset replay_buffer", "data_source"),
    ("data_source data source", "dataset"),
    ("scratch_dir mmap memmap path", "disk"),
    ("drop_last drop_remainder", "last_batch='drop'"),
    ("prefetch_factor prefetch_batches", "prefetch, in batches over all workers"),
    ("workers", "num_workers=N and worker_type='process' or 'thread'"),
    ("thread_pool", "worker_type='thread'"),
    ("method", "worker_type"),
    ("context mp_context start_method", "multiprocessing_context"),
    ("compiled", "bulk"),
    ("batchify_fn collate", "collate_fn"),
    ("wif init_fn", "worker_init_fn"),
    ("generator rng random_state random_seed torch_rng", "seed"),
    ("pin_memory_device", "device"),
    ("pin", "pin_memory"),
    ("host url server server_address endpoint", "address"),
    ("weights params state_dict", "tensors"),
    ("weights probs probabilities p ratios proportions fractions sources tables", "shares"),
    ("decay eta tau age recency_factor", "half_life"),
    ("key label labels by column name class_field stratify group", "field"),
    ("max_in_flight max_in_flight_samples_per_worker num_prefetch", "prefetch"),
)
"""Names in other libraries and before the first release, with ours.

A line applies if our name is a parameter.
"""

SAY: dict[str, tuple[str, ...]] = {}
"""A wrong keyword and its replacements, in the order of preference."""
for _wrong, _ours in _SAY:
    for _word in _wrong.split():
        SAY[_word] = (*SAY.get(_word, ()), _ours)

LEAVE_OUT: dict[tuple[str, str], str] = {
    ("AsyncDataLoader", "drop_last"): "every batch of a source is whole, leave it out",
    **{
        (one, "persistent_workers"): "workers live as long as the loader, leave it out"
        for one in ("AsyncDataLoader", "DataLoader")
    },
    ("AsyncDataLoader", "shuffle"): (
        "a source decides its order: give a table another sampler, or use async_loader.DataLoader "
        "for a dataset"
    ),
    (
        "AsyncDataLoader",
        "sampler",
    ): "give it to the table: ReplayBuffer(sampler=...) or table.source(sampler=...)",
    (
        "AsyncDataLoader",
        "view",
    ): "give it to the table: ReplayBuffer(view=...) or table.source(view=...)",
    ("AsyncDataLoader", "min_size"): "give it to the source: table.source(min_size=...)",
    (
        "AsyncDataLoader",
        "pin_memory",
    ): "say device='cuda': batches then come from page-locked memory",
    (
        "AsyncDataLoader",
        "bulk",
    ): "rows of columns and tables are always gathered in bulk, leave it out",
    ("AsyncDataLoader", "layout"): "fields of a batch are always contiguous, leave it out",
    ("Uniform", "seed"): "give it to the table: ReplayBuffer(seed=...) or table.source(seed=...)",
    (
        "Prioritized",
        "seed",
    ): "give it to the table: ReplayBuffer(seed=...) or table.source(seed=...)",
    ("Prioritized", "max_capacity"): "a sampler takes the capacity of its table, leave it out",
    (
        "Transitions",
        "overlapping",
    ): "obs and next_obs of a batch are arrays of their own, leave it out",
    ("DataLoader", "generator"): "say seed: the order depends on it alone",
    ("DataLoader", "chunk_size"): "batches are not divided, leave it out",
    (
        "DataLoader",
        "on_error",
    ): "an error of the dataset is raised by next, and the next call goes on: leave it out",
    (
        "ReplayBuffer",
        "batch_size",
    ): "give it to sample(batch_size) or to AsyncDataLoader(table, batch_size)",
    ("ReplayBuffer", "device"): "give it to sample(device=...) or to AsyncDataLoader(device=...); "
    "for Stable-Baselines3 take the class from async_loader.compat.sb3",
    ("ReplayBuffer", "collate_fn"): "give it to AsyncDataLoader(collate_fn=...)",
    ("ReplayBuffer", "prefetch"): "give it to AsyncDataLoader(prefetch=...)",
    (
        "ReplayBuffer",
        "pin_memory",
    ): "say AsyncDataLoader(device='cuda'): batches then come from page-locked memory",
    ("ReplayBuffer", "storage"): "rows are kept in shared memory, leave it out; or say "
    "disk=folder to keep them in a mapped file",
    ("ReplayBuffer", "writer"): "call table.writer() for one",
    (
        "ReplayBuffer",
        "n_envs",
    ): "a table takes any number of streams: call table.vector_writer(envs), leave it out",
    (
        "ReplayBuffer",
        "num_envs",
    ): "a table takes any number of streams: call table.vector_writer(envs), leave it out",
    (
        "ReplayBuffer",
        "optimize_memory_usage",
    ): "say Field(..., next='next_obs') in the schema: next observations are not stored twice",
    ("ReplayBuffer", "next_of"): "say Field(..., next='next_obs') in the schema",
    ("ReplayBuffer", "stack_compress"): "say Field(..., stack=4) in the schema",
    ("ReplayBuffer", "stack"): "say Field(..., stack=4) in the schema",
    (
        "ReplayBuffer",
        "handle_timeout_termination",
    ): "say truncated=True for a step that a time limit ended, leave it out",
}
"""Keywords without a replacement in a callable of ours, and the reason or the remedy."""

_ATTRIBUTES: tuple[tuple[str, str, str], ...] = (
    ("size get_stored_size get_buffer_size", "sample", "say len(table)"),
    (
        "writer_handle",
        "sample",
        "other processes write to a feeder, which connect('embedded', tables=...) opens",
    ),
    ("is_full full", "sample", "say stats().full"),
    ("priorities", "update_priorities", "say update_priorities(index, priority)"),
    ("reset empty", "clear", "say clear()"),
    ("push store insert put add_transition append", "add", "say add(...), or writer().append(...)"),
    ("push store insert put add_transition append add", "writer", "say writer().append(...)"),
    ("push store insert put add_transition add", "append", "say append(...)"),
    (
        "update_priority update_tensordict_priority mutate_priorities feedback set_priorities",
        "update_priorities",
        "say update_priorities(index, priority)",
    ),
    ("sample_batch get_batch", "sample", "say sample(batch_size)"),
    ("sample sample_batch get_batch next", "update", "say next(loader)"),
    ("dumps save_transitions save_to_disk checkpoint", "save", "say save(path)"),
    ("loads load_transitions", "load", "say load(path)"),
    ("on_episode_end episode_end", "end_episode", "say end_episode()"),
    (
        "state_dict load_state_dict",
        "save",
        "the table has the state: say table.save(path) and table.load(path)",
    ),
    (
        "plan reader note_ahead waiting_for",
        "source",
        "a table is not a source: say table.source()",
    ),
    ("as_dataset dataset dataloader loader", "sample", "say AsyncDataLoader(table, batch_size)"),
    ("who_waits", "stats", "say stats().waiting"),
    ("buffer_size max_size", "capacity", "say capacity"),
    ("trajectory_writer", "writer", "say table.writer()"),
    ("create_item", "append", "every step is an item: say append(...)"),
    (
        "append extend add end_episode flush close steps",
        "open",
        "a handle is opened by the process that writes: say writer = handle.open(), and then "
        "writer.append(...)",
    ),
    (
        "sample append add extend writer vector_writer source capacity schema update_priorities",
        "table",
        "the tables have it: say client.table(name)",
    ),
    ("stop shutdown terminate", "close", "say close()"),
)
"""Attributes of tables, writers and loaders in other libraries or earlier versions, an attribute
of ours, and the replacement for objects that have it. The first line that applies is taken.
"""

ON_CLASS: dict[str, str] = {
    "load": "say table.load(path), or ReplayBuffer.from_checkpoint(path) for a table that is not "
    "there yet"
}
"""Methods that were renamed or moved, called on a class."""

_OF_PACKAGE: dict[str, str] = {
    "Queue": "say ReplayBuffer.queue(size, schema)",
    "Stack": "say ReplayBuffer.stack(size, schema)",
    "PrioritizedReplayBuffer": "say ReplayBuffer(capacity, schema, sampler=Prioritized())",
    "SampleToInsertRatio": "say RateLimiter(samples_per_insert=...)",
    "NStep": "say Transitions(n_steps=...)",
    "Client": "say connect(address)",
    "Server": "say connect('embedded', tables=...), or start async-loader serve",
    **{
        name: "say async_loader.offline." + ours
        for name, ours in (
            ("MinariDataset", "from_minari(name)"),
            ("D4RLDataset", "from_hdf5(path)"),
            ("LeRobotDataset", "lerobot.LeRobotSource(path)"),
            ("LeRobotSource", "lerobot.LeRobotSource(path)"),
            ("from_minari", "from_minari(name)"),
            ("to_minari", "to_minari(table, name)"),
            ("to_npz", "to_npz(table, folder)"),
            ("from_hdf5", "from_hdf5(path)"),
            ("from_npz", "from_npz(folder)"),
            ("from_episodes", "from_episodes(episodes)"),
        )
    },
    "VectorWriter": "call table.vector_writer(envs)",
    "WriterHandle": "write to a feeder: connect('embedded', tables=...)",
    "ReplayStats": "call table.stats(), which gives a TableStats",
    "Recorder": "say async_loader.recording.Recorder(env, table)",
    "VectorRecorder": "say async_loader.recording.VectorRecorder(envs, table)",
    "DataCollector": "say async_loader.recording.Recorder(env, table)",
    "Sequence": "say Sequences(length)",
    **{name: f"say from async_loader.targets import {name}" for name in ("GAE", "VTrace")},
    "SliceSampler": "say ReplayBuffer(view=Sequences(length))",
    **dict.fromkeys(
        ("ReplayBufferEnsemble", "SamplerEnsemble", "StorageEnsemble", "MixedDataset"),
        "say Mixture({table: share, ...})",
    ),
    "ERE": "say sampler=Recency(half_life)",
    **dict.fromkeys(
        ("WeightedRandomSampler", "BalancedSampler", "ClassBalanced", "Stratified"),
        "say sampler=Balanced(field), for every value of a field equally often",
    ),
    "HER": "say ReplayBuffer(view=Hindsight(compute_reward))",
    "HerReplayBuffer": "say ReplayBuffer(view=Hindsight(compute_reward))",
    "HERReplayBuffer": "say ReplayBuffer(view=Hindsight(compute_reward))",
    "HindsightReplayBuffer": "say ReplayBuffer(view=Hindsight(compute_reward))",
    "HERTransform": "say ReplayBuffer(view=Hindsight(compute_reward))",
    "MultiStepTransform": "say ReplayBuffer(view=Transitions(n_steps=...))",
}

_STAYS = "it stays where it is, import it from "
_RL_STORAGE = "say storage=n, the number of steps"
_RL_TABLE = "buffer.table, an async_loader.ReplayBuffer, "
_RL_HINTS = {
    **dict.fromkeys(("LazyTensorStorage", "ListStorage", "TensorStorage", "Storage"), _RL_STORAGE),
    "LazyMemmapStorage": f"{_RL_STORAGE}; async_loader.ReplayBuffer(disk=folder) is in a file",
    **dict.fromkeys(
        ("RoundRobinWriter", "TensorDictRoundRobinWriter", "Writer"),
        "a table overwrites its oldest steps, leave it out",
    ),
    **dict.fromkeys(
        ("TensorDictMaxValueWriter", "ImmutableDatasetWriter", "WriterEnsemble"),
        "say async_loader.ReplayBuffer(remover=...), which decides what makes room",
    ),
    "Sampler": "derive from async_loader.Sampler",
    "SliceSamplerWithoutReplacement": "say SliceSampler, or AsyncDataLoader with "
    f"{_RL_TABLE}and view=Sequences(length)",
    "PrioritizedSliceSampler": f"say {_RL_TABLE}with view=Sequences(length), sampler=Prioritized()",
    "ConsumingSampler": "say async_loader.ReplayBuffer(max_times_sampled=1)",
    "StalenessAwareSampler": "say sampler=async_loader.Recency(half_life)",
    **dict.fromkeys(
        ("RemoteTensorDictReplayBuffer", "RayReplayBuffer"),
        "say async_loader.connect(address), a table of a feeder",
    ),
    "HERReplayBuffer": _OF_PACKAGE["HERReplayBuffer"],
    **dict.fromkeys(
        ("ReplayBufferEnsemble", "SamplerEnsemble", "StorageEnsemble"),
        _OF_PACKAGE["SamplerEnsemble"],
    ),
    "MultiStep": _OF_PACKAGE["NStep"],
    "OfflineToOnlineReplayBuffer": _OF_PACKAGE["MixedDataset"],
}
_SB3_HINTS = {
    "HerReplayBuffer": "it reads the arrays of its own class; "
    + _OF_PACKAGE["HerReplayBuffer"].replace("ReplayBuffer(", "async_loader.ReplayBuffer(")
    + ", or import it from stable_baselines3",
    **dict.fromkeys(
        ("RolloutBuffer", "DictRolloutBuffer", "BaseBuffer"),
        _STAYS + "stable_baselines3.common.buffers",
    ),
    **dict.fromkeys(
        (
            "ReplayBufferSamples",
            "DictReplayBufferSamples",
            "RolloutBufferSamples",
            "DictRolloutBufferSamples",
        ),
        _STAYS + "stable_baselines3.common.type_aliases",
    ),
    **dict.fromkeys(
        ("PrioritizedReplayBuffer", "PrioritizedReplayBufferSamples"),
        "say async_loader.ReplayBuffer(capacity, schema, sampler=Prioritized())",
    ),
}
_DING_HINTS = {
    **dict.fromkeys(
        ("NaiveRLDataset", "BCODataset", "create_dataset", "offline_data_save_type", "hdf5_save"),
        _STAYS + "ding.utils.data",
    ),
    **dict.fromkeys(
        ("D4RLDataset", "HDF5Dataset"),
        "say async_loader.offline.from_hdf5(path), or import it from ding.utils.data",
    ),
    **dict.fromkeys(
        ("DequeBuffer", "NaiveReplayBuffer", "Buffer"),
        "say async_loader.ReplayBuffer(capacity, schema)",
    ),
    "AdvancedReplayBuffer": _OF_PACKAGE["PrioritizedReplayBuffer"],
    "EpisodeReplayBuffer": "say async_loader.ReplayBuffer(view=Sequences(length, whole=True))",
}
_FASTAI_HINTS = dict.fromkeys(
    (
        "DataLoaders",
        "Datasets",
        "DataBlock",
        "TfmdDL",
        "TfmdLists",
        "Pipeline",
        "Transform",
        "ImageDataLoaders",
        "TextDataLoaders",
        "TabularDataLoaders",
    ),
    _STAYS + "fastai",
)
_GLUON_HINTS = {
    **dict.fromkeys(
        ("vision", "ImageFolderDataset", "ImageRecordDataset", "transforms"),
        _STAYS + "mxnet.gluon.data.vision",
    ),
    **dict.fromkeys(("Block", "HybridBlock", "Trainer", "nn", "loss"), _STAYS + "mxnet.gluon"),
}
_GLUONNLP_HINTS = {
    **dict.fromkeys(("Vocab", "model", "embedding", "optimizer"), _STAYS + "gluonnlp"),
    **dict.fromkeys(
        (
            "DatasetLoader",
            "PrefetchingStream",
            "DataStream",
            "SimpleDataStream",
            "TSVDataset",
            "TextLineDataset",
            "CorpusDataset",
            "SentencepieceTokenizer",
            "NLTKMosesTokenizer",
            "SacreMosesTokenizer",
            "SpacyTokenizer",
        ),
        _STAYS + "gluonnlp.data",
    ),
}
PUBLIC: dict[str, dict[str, str]] = {
    "async_loader": _OF_PACKAGE,
    "async_loader.compat.ding": _DING_HINTS,
    "async_loader.compat.fastai": _FASTAI_HINTS,
    "async_loader.compat.gluon": _GLUON_HINTS,
    "async_loader.compat.gluon.data": _GLUON_HINTS,
    "async_loader.compat.gluonnlp": _GLUONNLP_HINTS,
    "async_loader.compat.gluonnlp.data": _GLUONNLP_HINTS,
    "async_loader.compat.sb3": _SB3_HINTS,
    "async_loader.compat.torchrl": _RL_HINTS,
}
"""Names that a user might expect in a module, and what to write in their place."""


def hint(word: str, known: Iterable[str], owner: str = "") -> str:
    """Return the remedy for ``word`` as the end of a message.

    Parameters
    ----------
    word : str
        The given name.
    known : iterable of str
        The valid names.
    owner : str
        The callable, as "DataLoader" or "ReplayBuffer.sample", to look up in `LEAVE_OUT`.

    Returns
    -------
    str
        "say timeout_s", "did you mean 'num_workers'?" or "it takes dataset, batch_size".
    """
    names = [str(one) for one in known]
    if (owner, word) in LEAVE_OUT:
        return LEAVE_OUT[owner, word]
    for ours in SAY.get(word, ()):
        if _keyword(ours) in names:
            return f"say {ours}"
    return nearest(word, names)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the name in ``known`` closest to ``word`` in spelling, or all of them,
    as the end of a message.
    """
    names = [str(one) for one in known]
    near = difflib.get_close_matches(word, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(names)}"


def missing_field(name: str, batch: Mapping[str, Any]) -> str:
    """Return what to do for a field that a batch does not have, as a message."""
    known = list(map(str, batch))
    word = re.sub("next|new", "", name).strip("_")
    said = hint(name, known).replace("it takes", "it has")
    if word != name and not any(one.startswith("next") for one in known):
        own = [one for one in (word, *SAY.get(word, ()), "obs") if one in known]
        of = f" for {own[0]!r}" if own else ""
        said = (
            f"a table delivers the value of the step that follows if its schema asks for it: "
            f"say Field(..., next='next_{own[0] if own else word}'){of}"
        )
    elif word != name and said.startswith("it has"):
        said = f"say {next(one for one in known if one.startswith('next'))!r}"
    elif name in ("weight", "weights", "is_weights") and "weight" not in known:
        said = "a table has weights if it was made with sampler=Prioritized(...)"
    elif name.startswith("discount"):
        said = "it comes with view=Transitions(n_steps=..., gamma=...)"
    return f"the batch has no field {name!r}: {said}"


def _keyword(ours: str) -> str:
    """Return the parameter of a remedy: "last_batch" of "last_batch='drop'"."""
    return ours.replace(",", "=").split("=", 1)[0]


def attribute_remedy(kind: type, name: str) -> str:
    """Return what objects of this class have in place of an attribute; "" if that is unknown."""
    return next(
        (
            remedy
            for words, needed, remedy in _ATTRIBUTES
            if name in words.split() and hasattr(kind, needed)
        ),
        "",
    )


def explain_wrong_attributes(kind: T) -> T:
    """Decorate a class: the AttributeError for a name in `_ATTRIBUTES` names the replacement
    that the object has.

    Existing attributes cost nothing extra. Type checkers see the class unchanged.
    """

    def look(self: object, name: str) -> Any:
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        remedy = attribute_remedy(type(self), name)
        raise AttributeError(f"{text}: {remedy}" if remedy else text, name=name, obj=self)

    kind.__getattr__ = look  # type: ignore[attr-defined]
    return kind


def explain_wrong_names(function: F) -> F:
    """Decorate a callable: a TypeError of its call names the right keyword, and with ``**fields``
    says that they are named.

    A valid call costs one more frame. Do not use it where a result must not be lost (``append`` of
    one step, ``sample`` of a queue): Python may handle a signal in that frame, after the call.
    Warnings within ``function`` take their level from `stacklevel`.

    >>> @explain_wrong_names
    ... def wait(*, timeout_s=None): ...
    >>> wait(timeout=3)
    Traceback (most recent call last):
    TypeError: wait() has no timeout: say timeout_s
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            trace = error.__traceback__
            # raised by the call itself, not within the function
            if trace is not None and trace.tb_next is None:
                _explain(function, args, kwargs)
            raise

    return cast(F, call)


def by_name(function: F) -> F:
    """Decorate a method ``(self, step=None, /, *misplaced, ...)`` that takes fields by name:
    hides ``misplaced``.

    The method itself raises `misplaced_fields`, so a call needs no extra frame. For methods that
    append steps, see `explain_wrong_names`.
    """
    signature = inspect.signature(function)
    shown = [one for one in signature.parameters.values() if one.kind is not one.VAR_POSITIONAL]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def misplaced_fields(method: str, misplaced: tuple[Any, ...], what: str = "step") -> TypeError:
    """Return the TypeError for fields given by position."""
    example = "obs=..., action=..., reward=..."
    return TypeError(
        f"{method}() takes one {what} by place, a dict of fields, and {len(misplaced) + 1} values "
        "were given: name the fields, "
        f"as in {method.rpartition('.')[2]}({example})"
    )


def _explain(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError with the remedy;
    return if Python's own message is enough (a missing argument).
    """
    signature = inspect.signature(function)
    parameters = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    owner = _owner(
        function, args[0] if args and len(parameters) < len(signature.parameters) else None
    )
    named = [
        one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    takes_fields = any(one.kind is one.VAR_KEYWORD for one in parameters)
    for word in kwargs:
        if word not in named and not takes_fields:
            raise TypeError(f"{owner}() has no {word}: {hint(word, named, owner)}") from None
    placed = [
        one.name
        for one in parameters
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    given = len(args) - (len(signature.parameters) - len(parameters))
    if given > len(placed):
        only = f"takes {', '.join(placed)} by place" if placed else "takes nothing by place"
        names = ", ".join(f"{one}=" for one in named if one not in placed)
        if takes_fields:
            names = f"obs=, action=, reward=, {names}"
        raise TypeError(
            f"{owner}() {only}, and {given} values were given: name the others ({names})"
        ) from None
    name = function.__name__
    if len(parameters) < len(signature.parameters) and args and not hasattr(args[0], name):
        text = (
            f"{function.__qualname__.rsplit('<locals>.', 1)[-1]}() is called on an object, not "
            "on the class"
        )
        raise TypeError(f"{text}: {ON_CLASS[name]}" if name in ON_CLASS else text) from None


def _owner(function: Callable[..., Any], bound: object) -> str:
    """Return the name of a callable as users write it: "DataLoader", "ReplayBuffer.sample",
    "connect".
    """
    *_, name = function.__qualname__.split(".")
    if bound is None:
        return function.__qualname__.rsplit("<locals>.", 1)[-1].removesuffix(".__init__")
    kind = (bound if isinstance(bound, type) else type(bound)).__name__
    return kind if name == "__init__" else f"{kind}.{name}"


def stacklevel() -> int:
    """Return the stack level for a warning of the calling function,
    so that it points at the user's line.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(
        "async_loader."
    ):
        level, frame = level + 1, frame.f_back
    return level


def describe(obj: Any) -> str:
    """Describe a callable or object and where it is defined. Short; never prints large values."""
    if isinstance(obj, functools.partial):
        arguments = ", ".join(_brief(a) for a in obj.args)
        return f"partial({describe(obj.func)}{', ' if arguments else ''}{arguments})"
    bound = getattr(obj, "__self__", None)
    code = getattr(getattr(obj, "__func__", obj), "__code__", None)
    if code is not None:
        owner = f"{type(bound).__qualname__}." if bound is not None else ""
        return f"{owner}{obj.__name__} ({code.co_filename}:{code.co_firstlineno})"
    # a class, or a method written in C
    if isinstance(obj, type) or (callable(obj) and hasattr(obj, "__qualname__")):
        return f"{obj.__module__ or ''}.{obj.__qualname__}".removeprefix(".").removeprefix(
            "builtins."
        )
    return _brief(obj)


def _brief(obj: object) -> str:
    text = (
        repr(obj)
        if isinstance(obj, str | bytes | int | float | bool | type(None))
        else f"<{type(obj).__qualname__}>"
    )
    return text if len(text) <= 60 else text[:57] + "..."


if TYPE_CHECKING:
    class_only = classmethod
else:

    class class_only(classmethod):
        """A classmethod that refuses a call on an object, which it would leave as it is."""

        def __get__(self, one, owner=None):
            bound = super().__get__(None, type(one) if owner is None else owner)
            if one is None:
                return bound

            @functools.wraps(bound)
            def refused(*args, **kwargs):
                of = f"{type(one).__name__}.{bound.__name__}"
                load = ", or load(path) of this one" if bound.__name__ == "from_checkpoint" else ""
                from async_loader.errors import ConfigError

                raise ConfigError(
                    f"{of}() makes another {type(one).__name__}, and this one would stay as it is: "
                    f"call {of}(...) on the class{load}"
                )

            return refused
