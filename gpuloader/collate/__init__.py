"""From what a reader yields to filled slots: every value is written once, straight into its slot."""
