-- Makes the server end a transaction that is idle after the statement that settles its jobs. The
-- client's connection may be dead, and until then no other session can settle the jobs. It has no
-- effect outside of a transaction.
(SELECT set_config('idle_in_transaction_session_timeout', '15000', true)) IS NOT NULL
