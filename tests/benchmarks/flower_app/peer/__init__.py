"""An app of Flower that takes means."""
