"""Workers: processes that take turns from a store in PostgreSQL, and the queue that tells them of work.

The node tree is the journal; the queue only sees to it that somebody goes on. What protects a session is the epoch that each
commit carries, never the queue and never a lease.
"""
