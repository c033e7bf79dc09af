"""Programs cross processors: from x86-64 to arm64 (under qemu, see `support.arm64`) and back."""
