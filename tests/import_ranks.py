"""The order of the files inside each room of the package, for `test_imports`."""

from __future__ import annotations

RANKS: dict[str, list[str]] = {}
"""Files inside a room, from the bottom up, by their names within it; a folder's name is its
``__init__``, the room's name the room's. What stands in one line are siblings. A file imports only
from lines above its own: also late, also for types.
"""
RANKS["replay"] = [
    "array_types rate_limiter return_arguments stream_names",
    "hindsight_view",
    "goal_fields goal_returns hindsight_parts views",
    "arguments end_names read_plan ragged",
    "codec limiter_state queues sequence_limits",
    "base base.array_address base.field_table base.goal_table base.kernel_cache "
    "base.episode_lists base.link_table base.place_table base.row_format "
    "base.sequence_table",
    "base.compiled",
    "kernels.machine",
    "kernels.row_address",
    "kernels.linked_rows kernels.places kernels.sequence_starts kernels.writing",
    "kernels.episode_lists kernels.reading",
    "kernels.compressed kernels.goals kernels.sequences",
    "kernels.items",
    "kernels",
    "samplers.sampler samplers.random_numbers samplers.schedule",
    "samplers.priority_rules",
    "samplers.binding samplers.seeded samplers.random_rows samplers.order samplers.heap_kernels "
    "samplers.tree_kernels samplers.value_list_kernels",
    "samplers.heap samplers.ordered samplers.tree samplers.prioritized_kernels",
    "samplers.arrivals samplers.heaps samplers.prioritized samplers.uniform samplers.value_lists",
    "samplers.balanced samplers.rank samplers.recency",
    "samplers",
    "table table.batch_arrays table.field_validator table.free_rows table.inner_sampler "
    "table.storage table.waiters",
    "table.compressed_ring table.readahead",
    "stats table.episode_ends table.last_streams table.lag_sampler "
    "table.reader table.sequence_sampler table.step_packer",
    "table.decompressing_reader table.hindsight_reader table.sequence_reader",
    "table.items vector_writer",
    "table.streams",
    "table.room",
    "table.write",
    "table.table",
    "table.derived table.newest_episodes table.staged_batches",
    "table.staged_steps",
    "table.table_access",
    "table.table_state",
    "table.draw_checks table.insert table.readers table.source_sampler",
    "table.read_plans",
    "table.sample",
    "table.by_id table.table_parts",
    "table.sampler_session",
    "table.nonblocking_table",
    "source writer",
    "checkpoint.disk checkpoint.manifest checkpoint.encoding checkpoint.settings",
    "checkpoint.folder",
    "checkpoint.reading",
    "checkpoint.compressed",
    "checkpoint.snapshot",
    "checkpoint.writing",
    "checkpoint.loading",
    "checkpoint",
    "buffer",
    "kernel_warmup replay",
    "kernel_build",
]
RANKS["pipeline"] = [
    "pipeline batch batches batches.arena batches.collate batches.slot_allocator codec device "
    "device.backend draw_place shared_calls workers",
    "batches.host_output batches.output_buffers batches.transform device.block_views "
    "device.pinned_memory train_queue workers.ending workers.failures workers.seeding",
    "batches.local_collator device.cuda_queue device.torch_backend job_queue workers.work "
    "workers.worker_slots",
    "batches.assembler device.cuda_backend device.transfer_thread task_supplier "
    "workers.sample_work workers.worker_main",
    "device.backend_choice device.pinning_thread device.streamer producer workers.thread_pool "
    "workers.worker_handle",
    "workers.worker_pool",
    "engine_core dispatch",
    "iteration",
    "iterator",
    "engine source_engine",
]
RANKS["targets"] = ["steps", "functions", "transforms", "targets"]
RANKS["dataset"] = [
    "bookmarks generator_state torch_collate",
    "array_dataset batch_order",
    "dataset_work sampler_pass",
    "sampler_batches",
    "epoch_progress share_check",
    "epoch",
    "data_loader",
    "dataset",
]
RANKS["feeder"] = [
    "reserve_descriptor",
    "status wire.bounds wire.codes zmtp.errors shared.offer derived_settings settings_errors "
    "client.forks client.stats server.episode_values",
    "client client.batch_structure client.notifier client.old_rows client.outbox server.folders "
    "shared.weights_memory "
    "server.policy_lag server.producer_positions server.row_counts",
    "wire.data wire.header wire.scan wire.schema_codec zmtp.frames shared.batch_ring "
    "shared.listener client.publish_turns client.waker client.whereabouts",
    "table_settings",
    "wire.control wire.row_layout zmtp.curve zmtp.mechanism zmtp.null shared plain_values",
    "wire.calls wire.rows wire.weights zmtp.connection server.outgoing_batches",
    "wire.batches wire.control_codec zmtp",
    "wire.message",
    "wire",
    "server.peer_connection",
    "addresses wire_views",
    "reach client.batch_copies client.goal_batches client.session client.stream_numbers",
    "server.background_jobs server.blocked_time server.connection_ends server.receipt "
    "server.message_queues "
    "server.status_requests "
    "server.producer_streams server.send_buffers",
    "server.table_views server.weights",
    "curve_keys listen_sockets settings",
    "client.answer_deadline client.errors",
    "client.calls client.channel client.reader_state client.sampled_leases client.slots "
    "server.insert_slots server.reader_state",
    "address_lock curve_auth client.sockets server.acceptor server.insert_queue",
    "server.batch_scheduler server.sessions server.sockets",
    "self_test client.io_thread",
    "client.offered_memory",
    "client.insert_memory",
    "client.row_buffer",
    "client.row_packer",
    "client.row_queue",
    "client.writer_channel",
    "client.deliveries",
    "server.counters",
    "server.dispatch server.kernel_warmup server.pending server.state",
    "client.connection client.reader_channel server.deferred server.insert_handler "
    "server.sample_queue server.status",
    "client.weights",
    "client.arguments client.priority_updates client.row_sink client.sample_channel "
    "server.call_handler",
    "client.asked_by_id",
    "client.source client.table_calls client.traffic client.writer server.control_handler "
    "server.periodic_saves server.pull_handler",
    "client.owner server.event_loop",
    "client.table server",
    "client.client serving",
    "embedded",
    "client.connect",
    "feeder view_sections",
    "status_view",
    "commands",
    "inspection",
]
RANKS["compat"] = [
    "compat saved_table stored_column torchrl.samplers "
    "ding.collate ding.decollate ding.entries fastai.callbacks fastai.collate "
    "fastai.collate_errors fastai.fake_loader fastai.getattr_proxy fastai.items "
    "fastai.keep_types fastai.to_device gluon.data.arrays gluon.data.checks gluon.data.queues "
    "gluonnlp.data.buckets sb3.peer "
    "sb3.staged_calls sb3.transitions torch.gather_pass torch.order torch_errors",
    "ding.ragged ding.results ding.timesteps fastai.batch_maker fastai.workers "
    "gluon.data.batchify gluon.data.sampler sb3.placed_draws sb3.step_block torch.loader "
    "torchrl.arguments",
    "ding.loader fastai.loader gluon.data.dataset gluonnlp.data.batchify gluonnlp.data.sampler "
    "sb3.cold_calls torch.stateful torchrl.replay_buffer",
    "ding fastai gluon.data.bulk gluon.data.records sb3.placed_steps torch "
    "torchrl.tensordict_replay_buffer",
    "accelerate gluon.data.dataloader sb3.linked_steps torchrl",
    "gluon.data gluonnlp.data.dataloader sb3.replay_buffer",
    "gluon gluonnlp.data sb3.dict_replay_buffer sb3.n_step_replay_buffer",
    "gluonnlp sb3",
]
RANKS["shm"] = [
    "shm array_pool hugepages limits malloc",
    "segment",
    "fd_channel slot_ring",
    "batch_buffer",
]
RANKS["sources"] = [
    "sources callable columns mixture_rows",
    "mixture_index mixture_member",
    "mixture",
]
RANKS["offline"] = [
    "bad_data shown_tables",
    "episode_ends h5_files",
    "episode",
    "filling table_episodes",
    "fill",
    "hdf5 npz lerobot.parquet lerobot.frame_cache lerobot.video",
    "minari_data lerobot.layout",
    "lerobot.columns",
    "lerobot.reader",
    "lerobot.source",
    "lerobot",
    "offline",
    "commands",
]
RANKS["testing"] = [
    "testing conformance debug fake_device fakes",
]
RANKS["observe"] = [
    "cluster_sessions families http_server dashboard.shard_rows",
    "cluster_status feeder_families object_families dashboard.frame",
    "exporter dashboard.history",
    "dashboard.server",
    "dashboard",
    "beside observe top",
]
RANKS["recording"] = [
    "env_schema resets",
    "episode_stream opening",
    "parallel_recorder recorder vector_recorder",
    "recording",
]
RANKS["scale"] = [
    "batch_maker hosts importance ray_library shard_main shard_map shard_plan "
    "shares source_options stats",
    "cluster_keys cluster_settings directory local_ray membership place rules shard_process",
    "shard_connection shard_losses",
    "shard_deadline",
    "connections shard_rows shard_statuses shard_supervisor table_abouts",
    "at_once by_id leases losses placement shard_actor",
    "directory_actor source",
    "operations ray_directory table",
    "client commands",
    "cluster",
    "live_commands scale",
]
