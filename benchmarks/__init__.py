"""Benchmarks: ``python -m benchmarks [SUITE ...] [--quick]`` (``make bench``), see docs/benchmarks.md.

How everything here measures: ratios within one run; the variants take turns, so that what disturbs one disturbs all;
CPU time of the guest's thread where possible; the minimum of many rounds on several fresh instances, because one
instance's placement in memory can be worth a third of a tight loop; results compared in each round; nothing dropped:
a failure is a row of the report and makes the exit code 1.
"""
