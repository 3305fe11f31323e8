"""The session store in PostgreSQL 15 and later (extra ``moryflow[postgres]``), for more than one machine."""
