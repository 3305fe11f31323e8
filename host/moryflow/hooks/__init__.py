"""Call plugins: the set, the order, one isolated call, deadlines, the ledger, quarantine."""
