"""The bundled web server: gunicorn with fixed settings and a separate class of worker process.

A worker buffers a whole request before a thread handles it, and buffers the answer until the client has read
it. So slow clients occupy no thread.

Modules
    - ``arbiter`` has the parent process, which listens for connections, and starts and stops the workers.
    - ``client_poll`` has the connections of a worker, and waits for their events.
    - ``connection`` buffers the bytes of one client, from the first byte of a request to the last byte of its
      answer.
    - ``plain_http`` reads requests of the usual form and checks the headers of answers faster than gunicorn.
    - ``worker`` has the threads of a worker process, which read, answer and send.

A worked example
    A client sends the headers of a request at once, and then a body of 2 MB during ten seconds. Whenever a
    part arrives, one of the waiting threads reads the part, and waits for events again. The thread that reads
    the last part also calls the application, which answers with 5 MB. The thread sends as much of the answer
    as the socket's buffer takes. Later, threads send the rest of the answer in pieces, and the client has a
    minute to read each MiB. After the last byte of the answer, the connection waits for the client's next
    request.

Invariants
    - A thread waits only for the next event of any client, and never for a particular client.
    - A connection either waits for an event, or is used by the single thread that has taken it.
    - Each connection has a deadline in every state, except while a thread answers its request. If the
      connection has to wait for a thread at its deadline, it stays open.
    - A stopping server still answers the requests on its open connections, until gunicorn's
      ``graceful_timeout``. The server closes each connection after its first answer since the stop, or after
      some idle seconds.
    - While the total size of a worker's unfinished requests and unsent answers exceeds a maximum, the worker
      refuses all requests that are not small.
"""
