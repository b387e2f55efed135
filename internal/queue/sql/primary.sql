-- True on a primary, and an error on a standby, where no statement may read an unlogged table. A
-- standby may lag behind. The expression reads no rows.
(SELECT count(*) FROM {token} WHERE false) = 0
