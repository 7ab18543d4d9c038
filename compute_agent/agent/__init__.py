"""The agent as a process: wiring, threads, sockets, signals."""
