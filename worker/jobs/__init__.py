"""The contract between API and worker: jobs, the ledger, names, storage, messages. Loads neither torch nor Flask."""
