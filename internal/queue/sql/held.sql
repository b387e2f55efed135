-- The columns of the claim that a finished job keeps.
claimed_by, claim, claimed_at, started_at
