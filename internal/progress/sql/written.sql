-- The time at which a checkpoint was written, equal in every session.
{microseconds updated_at}::text
