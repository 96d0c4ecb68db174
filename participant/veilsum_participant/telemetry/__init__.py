"""What a site shows its operator in metrics, and the few of them that its policy shares with the coordinator."""
