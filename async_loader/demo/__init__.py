"""A DQN that learns CartPole-v1 from a ReplayBuffer through an AsyncDataLoader: the library at work, end to end."""
