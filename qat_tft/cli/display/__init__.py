"""What people see: progress of training, pictures."""
