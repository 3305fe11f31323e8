"""Call plugins' hooks: the plugin set, the order, one isolated call, deadlines, the ledger, quarantine."""
