-- The columns that a finished job keeps.
{uncancelled}, cancel_at
