-- Sets the progress back within the batch's own transaction only. The handler may have ended that
-- transaction.
WITH {set_back}
SELECT at FROM set_back
