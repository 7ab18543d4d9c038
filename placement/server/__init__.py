"""The bundled web server: gunicorn with its settings, and a worker of its own.

The worker buffers a whole request before a thread handles it, and the answer until the client has taken it.
So slow clients occupy no thread.

Modules
    - ``connection`` has the bytes of one client, from the first byte of a request to the last of its answer.
    - ``worker`` has the loop, the threads and the limits.

A worked example
    A client sends the headers of a request at once, and 2 MB of its body in ten seconds. The loop reads each
    part as it arrives. With the last one it puts the connection into the queue of the threads. A thread calls
    the application, which answers with 5 MB, and fills the socket's buffer. The loop sends the rest of the
    answer in pieces. The client has a minute for each MiB. Then the loop waits for the next request.

Invariants
    - The loop never blocks; a thread blocks only while the application answers.
    - A connection belongs to the loop, or to the one thread that answers it.
    - Each connection has a deadline in every state.
    - The memory of all unfinished requests and answers is bounded.
"""
