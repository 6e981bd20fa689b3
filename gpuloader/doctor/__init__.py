"""What a loader needs of the machine it runs on, looked up and tried: findings, each with a verdict."""
