"""From host memory to a slot: layouts, memory, the ring, leases, the queue."""
