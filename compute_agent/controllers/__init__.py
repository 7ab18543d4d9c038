"""What puts an assignment into effect, one domain of the kernel each."""
