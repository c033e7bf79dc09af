"""Programs that run, and images of them: where rewriter, runtimes, host layer and format meet.

In the worker's process: `program` is one program on one runtime (run, freeze, capture, resume); `view` and `pages`
read its state from native memory, its own or a forked copy's; `fork` takes an image of a program that goes on, and
`fork_in_place` does it where forking is refused (`patience`); `terms` translates images of modules that were made
neutral; `incoming` builds a program that still runs elsewhere; `worker` and `worker_guest` serve requests. In the
parent's: `job` is the library's view of a program, `moving` the two ends of a live move, `worker_process` starts and
watches workers, `wire` is what they say to each other.
"""
