package receipt

import "github.com/pgfrontier/worker/internal/tables"

const columns = ` (consumer_name, unit, first_position, last_position, events, positions, hash, event_id, partition_key, scope)`

// Insert returns SQL that inserts rows of unit $1, if from, a CTE that returns the key and the scope
// of its checkpoint, has a row. rows names a parameter, a JSON list of [Row].
func Insert(t tables.Tables, from, rows string) string {
	return `
	INSERT INTO ` + t.Receipts.SQL() + columns + `
	SELECT split_part($1::text, '#', 1), $1::text, r.first, r.last, r.events, r.positions, r.hash, r.event, ` + from + `.partition_key, ` + from + `.scope
	FROM ` + from + `, jsonb_to_recordset(` + rows + `::jsonb) AS r(first bigint, last bigint, events bigint, positions bigint, hash bigint, event uuid)`
}

// InsertEvents returns SQL that inserts events of unit $1, which events selects as (position, id). unit
// is what the rows name as the unit.
func InsertEvents(t tables.Tables, unit, events string) string {
	return `
	INSERT INTO ` + t.Receipts.SQL() + columns + `
	SELECT split_part($1::text, '#', 1), ` + unit + `, e.position, e.position, 0, 0, 0, e.id, c.partition_key, c.scope
	FROM (` + events + `) AS e(position, id), ` + t.Checkpoints.SQL() + ` AS c WHERE c.consumer_name = $1::text`
}

// End returns SQL that inserts the regions of checkpoints, which end. Another part of the statement,
// or another statement, sets them to NULL.
func End(t tables.Tables, which string) string {
	return `
	INSERT INTO ` + t.Receipts.SQL() + columns + `
	SELECT split_part(consumer_name, '#', 1), consumer_name, receipt[1], receipt[2], receipt[3], receipt[4], receipt[5], NULL, partition_key, scope
	FROM ` + t.Checkpoints.SQL() + ` WHERE receipt[1] <= receipt[2] AND ` + which
}
