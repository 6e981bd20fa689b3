"""Who fills the slots: the consumer itself or a thread beside it."""
