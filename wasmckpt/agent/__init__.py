"""The agent: one a machine, owns its programs, and answers REST (`docs/agent.md`).

Two halves. The domain, which is of use without HTTP, and whose methods block; and the routes, which turn requests into
calls of it, in threads, and errors into problem details::

    config     what it may do, and where      service   `Agent`: all of the domain, opened and closed
    database   SQLite: schema, transactions   records   jobs in it; states change here only
    jobs       the owner: what happens to a job, one thing at a time      runner   one live job: worker, series, logs
    start      from its beginning or from an image                        recovery what an agent finds when it starts
    timers     checkpoints, sleepers, tidying up, each at its time        metrics  for Prometheus
    modules    programs, by digest            checking  a module is validated in a process of its own
    logs       output, by offset              roots     folders that may be given to programs
    tokens     who may do what                events    what happened, for those who follow
    node       the machine

    app        the ASGI application           routes/   one file a kind of thing
    problems   errors as documents            guard     limits of bodies and time   following   server-sent events
    access     tokens and rates of requests   server    uvicorn, TLS, signals       connection  slow clients
    reply      ETags, idempotency, pages

What may be lost when an agent is killed, and when: `wasmckpt.api.states`.
"""
