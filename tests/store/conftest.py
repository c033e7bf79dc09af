"""Object storage for tests, see tests/support/buckets.py."""

from __future__ import annotations

from ..support.buckets import bucket, bucket_server, spoiled

__all__ = ["bucket", "bucket_server", "spoiled"]
