"""What touches the process: threads, tasks, log lines, free memory."""
