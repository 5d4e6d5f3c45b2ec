"""An end-to-end demo: a DQN learns CartPole-v1 from a ReplayBuffer through an AsyncDataLoader."""
