"""Every sample, frozen at its safepoints on one runtime, goes on on another, and leaves the same behind."""
