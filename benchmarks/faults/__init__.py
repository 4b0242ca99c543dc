"""What goes wrong outside of the program, done to it on purpose: broken input, kills, failing disks, other writers."""
