"""Time, memory and accuracy, side by side with peers."""
