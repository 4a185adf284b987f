"""Review mode: small changes to one training repository, healthy or faulty, for a reviewer."""
