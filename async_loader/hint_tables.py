"""Names in other libraries, and ours in their place: tables of text.

A line is ``NAMES -> OURS``; lines that go on are indented.
"""

SAY = """
timeout timeout_sec timeout_seconds timeout_ms rate_limiter_timeout_ms patience -> timeout_s
buffer_size max_size maxsize maxlen max_len n -> size
buffer_size max_size maxsize maxlen max_len max_capacity memory_size size -> capacity
rate_limiter -> limiter
env_dict signature spec specs data_spec fields -> schema
observation_space action_space -> schema={'obs': observation_space, 'action': action_space, ...}
n_step nstep Nstep n multi_step -> n_steps
n_step n_steps nstep Nstep n multi_step -> view=Transitions(n_steps=...)
seq_len sequence_length slice_len traj_len n num_steps unroll_length -> length
burnin warmup_steps lookback -> burn_in
overlap period shift step -> stride
episode_boundary -> boundary
states stored_state hidden_state -> state
transform transforms -> view
goal_selection_strategy goal_strategy her_strategy relabel_strategy -> strategy
n_sampled_goal replay_k future_k k -> relabel_fraction=k / (k + 1)
her_ratio relabel_ratio relabel_prob future_p her_p ratio fraction -> relabel_fraction
reward_fn reward_function reward_fun compute_reward_fn env -> compute_reward
terminated_fn done_fn compute_done is_success success_fn -> compute_terminated
desired_goal goal_key -> goal
achieved_goal achieved_goal_key -> achieved
transforms augment augmentation batch_transform postprocess -> transform
lambda_ lmbda gae_lambda td_lambda trace_decay -> lam
rewards -> reward
values state_value baseline -> value
q q_values action_value -> q_value
next_values next_state_value final_value -> next_value
bootstrap_value last_value last_values -> bootstrap
behavior_log_prob log_mu behaviour_log_probs behavior_log_probs -> behaviour_log_prob
log_pi target_log_probs -> target_log_prob
rho_thresh clip_rho_threshold rho_clip -> rho_bar
c_thresh clip_c_threshold c_clip -> c_bar
discount discount_factor -> gamma
new default_priority max_priority_within_buffer initial_priority -> new_priority
alpha beta -> sampler=Prioritized(alpha=..., beta=...)
epsilon priority_eps -> eps
beta0 beta_start beta_end beta_frames beta_steps beta_schedule -> beta=Linear(start, end, draws)
normalise normalization -> normalize
min_size learning_starts warmup min_size_to_learn -> min_size_to_sample
min_size_to_sample learning_starts warmup -> min_size
min_size_to_sample learning_starts warmup min_size -> limiter=MinSize(...)
samples_per_insert -> limiter=RateLimiter(samples_per_insert=...)
ratio replay_ratio samples_per_insert_ratio sample_to_insert_ratio -> samples_per_insert
max_diff min_diff max_deficit min_deficit error tolerance -> error_buffer
stack_num frame_stack num_stack n_stack framestack -> stack
pad padding_mode -> padding
type kind -> dtype
initial begin initial_value start_value -> start
final end_value final_value last -> end
steps n_steps total_steps duration anneal_steps num_steps iterations -> draws
with_replacement replace -> replacement
rank rank_based -> rank_prioritized
buffer replay_buffer writer data_collector -> table
extra extras extra_fields extra_keys -> fields
extras fields infos extra_fields extra_keys -> extra
table buffer replay_buffer to target -> into
min_size samples_per_insert sample_to_insert_ratio -> rate_limiter, with min_size_to_sample
n_envs num_env num_envs env -> envs
autoreset_mode auto_reset -> autoreset
delta_timestamps delta_indices -> windows
root repo_id -> folder
num_samples n size batch -> batch_size
bs -> batch_size
observation observations obs_ ob state states -> obs
actions act acts -> action
rew rews -> reward
out out_tensors output outputs output_tensors out_buffers static_inputs -> into
as_torch batch_type return_type output_format -> batch_format
indices indexes idxs idxes idx ids id keys -> index
priorities td_errors td_error prios p -> priority
final_observation last_obs terminal_observation -> final_obs
next_observation next_observations -> next_obs
final_obs next_observation -> next_obs
infos -> info
done dones -> terminated
stream_id episode_id env_id worker_id -> stream
save checkpoint step -> number
directory folder filename checkpoint_path -> path
source table buffer dataset replay_buffer -> data_source
data_source data source -> dataset
scratch_dir mmap memmap path -> disk
drop_last drop_remainder -> last_batch='drop'
prefetch_factor prefetch_batches -> prefetch, in batches over all workers
workers -> num_workers=N and worker_type='process' or 'thread'
thread_pool -> worker_type='thread'
method -> worker_type
context mp_context start_method -> multiprocessing_context
compiled -> bulk
batchify_fn collate -> collate_fn
wif init_fn -> worker_init_fn
generator rng random_state random_seed torch_rng -> seed
pin_memory_device -> device
pin -> pin_memory
host url server server_address endpoint -> address
weights params state_dict -> tensors
weights probs probabilities p ratios proportions fractions sources tables -> shares
decay eta tau age recency_factor -> half_life
key label labels by column name class_field stratify group -> field
max_in_flight max_in_flight_samples_per_worker num_prefetch -> prefetch
"""
"""Keywords. A line applies if our name is a parameter; the first that does is taken."""

LEAVE_OUT = """
AsyncDataLoader drop_last -> every batch of a source is whole, leave it out
AsyncDataLoader persistent_workers -> workers live as long as the loader, leave it out
DataLoader persistent_workers -> workers live as long as the loader, leave it out
AsyncDataLoader shuffle -> a source decides its order: give a table another sampler, or use
    async_loader.DataLoader for a dataset
AsyncDataLoader sampler -> give it to the table: ReplayBuffer(sampler=...) or
    table.source(sampler=...)
AsyncDataLoader view -> give it to the table: ReplayBuffer(view=...) or table.source(view=...)
AsyncDataLoader min_size -> give it to the source: table.source(min_size=...)
AsyncDataLoader pin_memory -> say device='cuda': batches then come from page-locked memory
Uniform seed -> give it to the table: ReplayBuffer(seed=...) or table.source(seed=...)
Prioritized seed -> give it to the table: ReplayBuffer(seed=...) or table.source(seed=...)
Prioritized max_capacity -> a sampler takes the capacity of its table, leave it out
DataLoader generator -> say seed: the order depends on it alone
DataLoader chunk_size -> batches are not divided, leave it out
DataLoader on_error -> an error of the dataset is raised by next, and the next call goes on:
    leave it out
ReplayBuffer.sample sampler -> give it to the table: ReplayBuffer(sampler=...) or
    table.source(sampler=...)
ReplayBuffer.sample n -> say batch_size
TableClient.sample sampler -> give it to a source: table.source(sampler=...)
TableClient.sample n -> say batch_size
ReplayBuffer.sample beta -> give it to the sampler: ReplayBuffer(sampler=Prioritized(beta=...))
ReplayBuffer batch_size -> give it to sample(batch_size) or to AsyncDataLoader(table,
    batch_size)
ReplayBuffer device -> give it to sample(device=...) or to AsyncDataLoader(device=...); for
    Stable-Baselines3 take the class from async_loader.compat.sb3
ReplayBuffer collate_fn -> give it to AsyncDataLoader(collate_fn=...)
ReplayBuffer prefetch -> give it to AsyncDataLoader(prefetch=...)
ReplayBuffer pin_memory -> say AsyncDataLoader(device='cuda'): batches then come from
    page-locked memory
ReplayBuffer storage -> rows are kept in shared memory, leave it out; or say disk=folder to keep
    them in a mapped file
ReplayBuffer writer -> call table.writer() for one
ReplayBuffer n_envs num_envs -> a table takes any number of streams: call
    table.vector_writer(envs), leave it out
ReplayBuffer optimize_memory_usage -> say Field(..., next='next_obs') in the schema: next
    observations are not stored twice
ReplayBuffer next_of -> say Field(..., next='next_obs') in the schema
ReplayBuffer stack_compress stack -> say Field(..., stack=4) in the schema
ReplayBuffer handle_timeout_termination -> say truncated=True for a step that a time limit
    ended, leave it out
"""
"""A callable of ours and keywords that it does not have, and the reason or the remedy."""

ATTRIBUTES = """
size get_stored_size get_buffer_size -> sample -> say len(table)
is_full full -> sample -> say stats().full
priorities -> update_priorities -> say update_priorities(index, priority)
reset empty -> clear -> say clear()
push store insert put add_transition append -> add -> say add(...), or writer().append(...)
push store insert put add_transition append add -> writer -> say writer().append(...)
add_batch push_batch insert_batch -> extend -> say extend(...)
extend add_batch push_batch insert_batch -> writer -> say writer().extend(...)
push store insert put add_transition add -> append -> say append(...)
update_priority update_tensordict_priority mutate_priorities feedback set_priorities ->
    update_priorities -> say update_priorities(index, priority)
sample_batch get_batch -> sample -> say sample(batch_size)
sample sample_batch get_batch next -> update -> say next(loader)
dumps save_transitions save_to_disk checkpoint -> save -> say save(path)
loads load_transitions -> load -> say load(path)
on_episode_end episode_end -> end_episode -> say end_episode()
state_dict load_state_dict -> save -> the table has the state: say table.save(path) and
    table.load(path)
plan reader note_ahead waiting_for -> source -> a table is not a source: say table.source()
as_dataset dataset dataloader loader -> sample -> say AsyncDataLoader(table, batch_size)
buffer_size max_size -> capacity -> say capacity
trajectory_writer -> writer -> say table.writer()
create_item -> append -> every step is an item: say append(...)
sample append add extend writer vector_writer source capacity schema update_priorities -> table
    -> the tables have it: say client.table(name)
stop shutdown terminate -> close -> say close()
to cuda cpu pin_memory device -> fromkeys -> a batch is a dict: say device= where it is drawn
obs next_obs observations next_observations action actions reward rewards terminated done dones
    index weight weights indices -> fromkeys -> a batch is a dict: say batch['obs']
"""
"""Attributes of tables, writers and loaders, an attribute of ours, and the replacement for objects
that have it. The first line that applies is taken.
"""

PUBLIC = """
## async_loader
Queue -> say ReplayBuffer.queue(size, schema)
Stack -> say ReplayBuffer.stack(size, schema)
PrioritizedReplayBuffer -> say ReplayBuffer(capacity, schema, sampler=Prioritized())
SampleToInsertRatio -> say RateLimiter(samples_per_insert=...)
NStep -> say Transitions(n_steps=...)
Client -> say connect(address)
Server -> say connect('embedded', tables=...), or start async-loader serve
MinariDataset from_minari -> say async_loader.offline.from_minari(name)
D4RLDataset from_hdf5 -> say async_loader.offline.from_hdf5(path)
LeRobotDataset LeRobotSource -> say async_loader.offline.lerobot.LeRobotSource(path)
to_minari -> say async_loader.offline.to_minari(table, name)
to_npz -> say async_loader.offline.to_npz(table, folder)
from_npz -> say async_loader.offline.from_npz(folder)
from_episodes -> say async_loader.offline.from_episodes(episodes)
VectorWriter -> call table.vector_writer(envs)
Recorder DataCollector -> say async_loader.recording.Recorder(env, table)
VectorRecorder -> say async_loader.recording.VectorRecorder(envs, table)
Sequence -> say Sequences(length)
GAE -> say from async_loader.targets import GAE
VTrace -> say from async_loader.targets import VTrace
SliceSampler -> say ReplayBuffer(view=Sequences(length))
ReplayBufferEnsemble SamplerEnsemble StorageEnsemble MixedDataset -> say Mixture({table: share,
    ...})
ERE -> say sampler=Recency(half_life)
WeightedRandomSampler BalancedSampler ClassBalanced Stratified -> say sampler=Balanced(field),
    for every value of a field equally often
HER HerReplayBuffer HERReplayBuffer HindsightReplayBuffer HERTransform -> say
    ReplayBuffer(view=Hindsight(compute_reward))
MultiStepTransform -> say ReplayBuffer(view=Transitions(n_steps=...))
## async_loader.offline
D4RLDataset HDF5Dataset from_d4rl load_d4rl load_hdf5 from_h5 -> say from_hdf5(path)
MinariDataset load_minari load_dataset -> say from_minari(name)
LeRobotDataset from_lerobot -> say LeRobotSource(folder)
## async_loader.recording
VecRecorder RecordVectorEnv -> say VectorRecorder(envs, table)
RecordEpisode DataCollector -> say Recorder(env, table)
## async_loader.compat.ding
NaiveRLDataset BCODataset create_dataset offline_data_save_type hdf5_save -> it stays where it
    is, import it from ding.utils.data
D4RLDataset HDF5Dataset -> say async_loader.offline.from_hdf5(path), or import it from
    ding.utils.data
DequeBuffer NaiveReplayBuffer Buffer -> say async_loader.ReplayBuffer(capacity, schema)
AdvancedReplayBuffer -> say ReplayBuffer(capacity, schema, sampler=Prioritized())
EpisodeReplayBuffer -> say async_loader.ReplayBuffer(view=Sequences(length, whole=True))
## async_loader.compat.fastai
DataLoaders Datasets DataBlock TfmdDL TfmdLists Pipeline Transform ImageDataLoaders
    TextDataLoaders TabularDataLoaders -> it stays where it is, import it from fastai
## async_loader.compat.gluon async_loader.compat.gluon.data
vision ImageFolderDataset ImageRecordDataset transforms -> it stays where it is, import it from
    mxnet.gluon.data.vision
Block HybridBlock Trainer nn loss -> it stays where it is, import it from mxnet.gluon
## async_loader.compat.gluonnlp async_loader.compat.gluonnlp.data
Vocab model embedding optimizer -> it stays where it is, import it from gluonnlp
DatasetLoader PrefetchingStream DataStream SimpleDataStream TSVDataset TextLineDataset
    CorpusDataset SentencepieceTokenizer NLTKMosesTokenizer SacreMosesTokenizer SpacyTokenizer
    -> it stays where it is, import it from gluonnlp.data
## async_loader.compat.sb3
HerReplayBuffer -> it reads the arrays of its own class; say
    async_loader.ReplayBuffer(view=Hindsight(compute_reward)), or import it from
    stable_baselines3
RolloutBuffer DictRolloutBuffer BaseBuffer -> it stays where it is, import it from
    stable_baselines3.common.buffers
ReplayBufferSamples DictReplayBufferSamples RolloutBufferSamples DictRolloutBufferSamples -> it
    stays where it is, import it from stable_baselines3.common.type_aliases
PrioritizedReplayBuffer PrioritizedReplayBufferSamples -> say
    async_loader.ReplayBuffer(capacity, schema, sampler=Prioritized())
## async_loader.compat.torchrl
LazyTensorStorage ListStorage TensorStorage Storage -> say storage=n, the number of steps
LazyMemmapStorage -> say storage=n, the number of steps; async_loader.ReplayBuffer(disk=folder)
    is in a file
RoundRobinWriter TensorDictRoundRobinWriter Writer -> a table overwrites its oldest steps, leave
    it out
TensorDictMaxValueWriter ImmutableDatasetWriter WriterEnsemble -> say
    async_loader.ReplayBuffer(remover=...), which decides what makes room
Sampler -> derive from async_loader.Sampler
SliceSamplerWithoutReplacement -> say SliceSampler, or AsyncDataLoader with buffer.table, an
    async_loader.ReplayBuffer, and view=Sequences(length)
PrioritizedSliceSampler -> say buffer.table, an async_loader.ReplayBuffer, with
    view=Sequences(length), sampler=Prioritized()
ConsumingSampler -> say async_loader.ReplayBuffer(max_times_sampled=1)
StalenessAwareSampler -> say sampler=async_loader.Recency(half_life)
RemoteTensorDictReplayBuffer RayReplayBuffer -> say async_loader.connect(address), a table of a
    feeder
HERReplayBuffer -> say ReplayBuffer(view=Hindsight(compute_reward))
ReplayBufferEnsemble SamplerEnsemble StorageEnsemble OfflineToOnlineReplayBuffer -> say
    Mixture({table: share, ...})
MultiStep -> say Transitions(n_steps=...)
"""
"""Names that a user might expect in the modules of a headline, and what to write in their place."""
