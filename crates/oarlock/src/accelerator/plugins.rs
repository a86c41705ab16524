//! Several DeepSpeed configurations in one process, of which one is active.
