"""The bundled web server: gunicorn with fixed settings and a separate class of worker process.

A worker buffers a whole request before a thread handles it, and buffers the answer until the client has read
it. So slow clients occupy no thread.

Modules
    - ``arbiter`` has the parent process, which listens for connections, and starts and stops the workers.
    - ``connection`` buffers the bytes of one client, from the first byte of a request to the last byte of its
      answer.
    - ``plain_http`` reads requests of the usual form and checks the headers of answers faster than gunicorn.
    - ``worker`` has the event loop, the threads and the limits of a worker process.

A worked example
    A client sends the headers of a request at once, and then a body of 2 MB during ten seconds. The event
    loop reads each part when the part arrives. After the last part, the loop puts the connection into the
    queue of complete requests. A thread takes the connection from the queue and calls the application, which
    answers with 5 MB. The thread sends as much of the answer as the socket's buffer takes. The loop sends the
    rest of the answer in pieces, and the client has a minute to read each MiB. After the last byte of the
    answer, the loop waits for the client's next request.

Invariants
    - Neither the event loop nor a thread ever waits for a client.
    - A connection belongs either to the loop, or to the thread that answers its request.
    - Each connection has a deadline in every state, except while a thread answers its request.
    - A stopping server still answers the requests on its open connections, until gunicorn's
      ``graceful_timeout``. The server closes each connection after its first answer since the stop, or after
      some idle seconds.
    - While the total size of a worker's unfinished requests and unsent answers exceeds a maximum, the worker
      refuses all requests that are not small.
"""
